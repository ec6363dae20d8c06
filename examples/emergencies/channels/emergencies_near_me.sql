-- New emergencies that reach where a person was seen last, and the shelter nearest to that person.
WITH reached AS (
  SELECT s.subscription, p.lat, p.lon, e.id, e.kind, e.severity, e.begins, e.ends,
         distance(p.lat, p.lon, e.lat, e.lon) AS metres
  FROM subscriptions s
  JOIN positions p ON p.user = s.user
  JOIN new_emergencies e ON distance(p.lat, p.lon, e.lat, e.lon) <= e.radius_m
  -- Seen within the last minute before it began, or while it lasts.
  WHERE p.at BETWEEN e.begins - INTERVAL 1 MINUTE AND e.ends
)
SELECT r.subscription, r.id, r.kind, r.severity, r.begins, r.ends, CAST(round(r.metres) AS INT) AS metres,
       min_by(h.shelter, distance(r.lat, r.lon, h.lat, h.lon)) AS shelter,
       CAST(round(min(distance(r.lat, r.lon, h.lat, h.lon))) AS INT) AS shelter_metres
FROM reached r CROSS JOIN shelters h
GROUP BY r.subscription, r.id, r.kind, r.severity, r.begins, r.ends, r.metres
