// One MQTT.js client: subscribes, publishes once with each QoS, says what came, and leaves.
const fs = require("fs");
const mqtt = require("mqtt");

const [url, authority] = process.argv.slice(2);
const options = { protocolVersion: 5, reconnectPeriod: 0, connectTimeout: 10000 };
if (authority) options.ca = fs.readFileSync(authority);
const client = mqtt.connect(url, options);
const came = [];

client.on("error", (error) => {
  console.error(String(error));
  process.exit(1);
});
client.on("connect", () => {
  client.subscribe("js/#", { qos: 2 }, () => {
    for (const qos of [0, 1, 2]) client.publish(`js/${qos}`, "x".repeat(70000 * qos + 1), { qos });
  });
});
client.on("message", (topic, payload, packet) => {
  came.push([topic, payload.length, packet.qos]);
  if (came.length < 3) return;
  client.stream.on("close", () => console.log(JSON.stringify(came.sort())));
  client.end();
});
