// What benchmarks/k6.js uses of k6, as little as it is: requests get the replies that a test wrote down.
export const seen = { requests: [], slept: [], metrics: {}, checks: [] };
let replies = [];
export const told = (written) => { replies = [...written]; };

const answer = (method, url, body, params) => {
  seen.requests.push({ method, url, body: body === null ? null : JSON.parse(body), headers: params.headers });
  return replies.shift();
};
export default {
  get: (url, params) => answer('GET', url, null, params),
  post: (url, body, params) => answer('POST', url, body, params),
};

export const check = (value, rules) => {
  const passed = Object.values(rules).map((rule) => Boolean(rule(value)));
  seen.checks.push(...passed);
  return passed.every(Boolean);
};
export const sleep = (seconds) => { seen.slept.push(seconds); };

class Metric {
  constructor(name) { seen.metrics[name] = this.values = []; }
  add(value) { this.values.push(Number(value)); }
}
export { Metric as Counter, Metric as Rate, Metric as Trend };
