// Octavo, or any server of the OpenAI API, under k6.
//
//   k6 run -e URL=http://127.0.0.1:8000 -e RATE=5 -e DURATION=2m benchmarks/k6.js
//
// k6 reads an answer whole: it does not see single tokens. The time to the first token is that to the first byte, which is
// the same for Octavo, whose headers wait for the first token; another server may send its headers earlier, and then the
// figure is too small. The time per output token is exact on average. `octavo bench` sees each gap between tokens.
import http from 'k6/http';
import { check, sleep } from 'k6';
import { Counter, Rate, Trend } from 'k6/metrics';

const env = (name, fallback) => (__ENV[name] === undefined || __ENV[name] === '' ? fallback : __ENV[name]);
const number = (name, fallback) => {
  const value = Number(env(name, fallback));
  if (!Number.isFinite(value) || value < 0) throw new Error(`${name} is ${__ENV[name]}; it must be a number from 0 on`);
  return value;
};

const url = env('URL', 'http://127.0.0.1:8000').replace(/\/+$/, '').replace(/\/v1$/, '');
const duration = env('DURATION', '1m');
const rate = number('RATE', 0); // requests a second (open loop); 0: VUS users, each waiting for its answer
const vus = number('VUS', 8);
const promptWords = number('PROMPT_WORDS', 200);
const systemWords = number('SYSTEM_WORDS', 0); // that all prompts begin with
const maxTokens = number('MAX_TOKENS', 128);
const thinkSeconds = number('THINK_SECONDS', 0);

const ttft = new Trend('time_to_first_token', true);
const tpot = new Trend('time_per_output_token', true);
const tokens = new Counter('output_tokens');
const failed = new Rate('answers_failed');

const scenario = rate > 0
  ? { executor: 'ramping-arrival-rate', startRate: number('START_RATE', rate), timeUnit: '1s', preAllocatedVUs: vus,
      maxVUs: number('MAX_VUS', 1000), stages: [{ target: rate, duration }] }
  : { executor: 'constant-vus', vus, duration };

// Objectives in milliseconds, of 99 of 100 answers: k6 ends with an error where they are missed.
const objectives = { answers_failed: ['rate<0.01'] };
if (number('SLO_TTFT', 0) > 0) objectives.time_to_first_token = [`p(99)<${number('SLO_TTFT', 0)}`];
if (number('SLO_TPOT', 0) > 0) objectives.time_per_output_token = [`p(99)<${number('SLO_TPOT', 0)}`];

export const options = {
  scenarios: { ask: scenario },
  thresholds: objectives,
  summaryTrendStats: ['avg', 'med', 'p(90)', 'p(99)', 'max'],
};

const WORDS = 'the of and to in is that it was for on are as with his they at be this from have or by one had not but'.split(' ');

export function words(count, chance) {
  return Array.from({ length: count }, () => WORDS[Math.floor(chance() * WORDS.length)]).join(' ');
}

// A small generator with a seed, so that all users begin with the same words.
function seeded(state) {
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296;
    return state / 4294967296;
  };
}
const system = words(systemWords, seeded(1));

// What a streamed answer says: its tokens by the server's account, or chunks with text without one; what went wrong.
export function read(body) {
  let chunks = 0;
  let counted = null;
  let error = null;
  let ended = false;
  for (const line of body.split('\n')) {
    if (!line.startsWith('data:')) continue;
    const payload = line.slice(5).trim();
    if (payload === '[DONE]') {
      ended = true;
      continue;
    }
    let chunk;
    try {
      chunk = JSON.parse(payload);
    } catch (problem) {
      return { tokens: 0, error: 'an event is no JSON' };
    }
    if (chunk.error) error = error || chunk.error.message || JSON.stringify(chunk.error);
    if (chunk.usage) counted = chunk.usage.completion_tokens;
    if ((chunk.choices || []).some((choice) => choice.delta && choice.delta.content)) chunks += 1;
  }
  const count = counted === null ? chunks : counted;
  if (!error && !ended) error = 'the stream has no [DONE]';
  if (!error && count === 0) error = 'no token';
  return { tokens: count, error };
}

function headers() {
  const key = env('OCTAVO_API_KEY', '');
  return Object.assign({ 'Content-Type': 'application/json' }, key ? { Authorization: `Bearer ${key}` } : {});
}

export function setup() {
  if (env('MODEL', '')) return { model: env('MODEL', '') };
  const listed = http.get(`${url}/v1/models`, { headers: headers() });
  if (listed.status !== 200) throw new Error(`${url}/v1/models: ${listed.status} ${listed.body}`);
  return { model: JSON.parse(listed.body).data[0].id };
}

export default function ask(data) {
  const messages = [{ role: 'user', content: words(promptWords, Math.random) }];
  if (system) messages.unshift({ role: 'system', content: system });
  const body = { model: data.model, messages, max_tokens: maxTokens, stream: true, stream_options: { include_usage: true } };
  const response = http.post(`${url}/v1/chat/completions`, JSON.stringify(body), { headers: headers(), timeout: '600s' });
  const answer = response.status === 200 ? read(response.body) : { tokens: 0, error: `status ${response.status}` };
  const whole = check(answer, { 'a whole answer': (seen) => seen.error === null });
  failed.add(!whole);
  if (whole) {
    ttft.add(response.timings.waiting);
    tokens.add(answer.tokens);
    if (answer.tokens > 1) tpot.add(response.timings.receiving / (answer.tokens - 1));
  }
  if (thinkSeconds > 0) sleep(thinkSeconds);
}
