-- Windows of five seconds in which a machine vibrates more than it was learned to.
WITH learned AS (
  SELECT machine, avg(mm_s) AS usual, stddev_samp(mm_s) AS spread
  FROM vibration
  GROUP BY machine
  HAVING count(*) >= 20
),
recent AS (
  SELECT machine, window(_arrived, '5 seconds').start AS since, avg(mm_s) AS mm_s
  FROM new_vibration
  GROUP BY machine, window(_arrived, '5 seconds')
)
SELECT s.subscription, r.since, round(r.mm_s, 2) AS mm_s, round(l.usual, 2) AS usual
FROM subscriptions s
JOIN recent r ON r.machine = s.machine
JOIN learned l ON l.machine = s.machine
WHERE r.mm_s > l.usual + 3 * l.spread
