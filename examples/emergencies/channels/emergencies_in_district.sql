-- What is new in a district, by kind.
SELECT s.subscription, e.kind, count(*) AS emergencies, max(e.severity) AS severity, max(e.ends) AS until
FROM subscriptions s
JOIN new_emergencies e ON e.district = s.district
GROUP BY s.subscription, e.kind
