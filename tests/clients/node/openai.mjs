// The official OpenAI client for Node against a server; prints what it has seen as JSON.
// docs: begin
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.OCTAVO_URL, // http://HOST:8000/v1
  apiKey: process.env.OCTAVO_API_KEY,
  maxRetries: 0,
});
const model = process.env.OCTAVO_MODEL;
const messages = [{ role: "user", content: "What is the capital of France?" }];

async function chat() {
  const answer = await client.chat.completions.create({ model, messages, temperature: 0 });
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, temperature: 0, stream: true })) {
    streamed += chunk.choices[0]?.delta.content ?? "";
  }
  return { text: answer.choices[0].message.content, streamed };
}
// docs: end

async function usage() {
  const asked = { model, messages, temperature: 0, logprobs: true, top_logprobs: 2, max_tokens: 3 };
  const answer = await client.chat.completions.create(asked);
  const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  const final = await stream.finalChatCompletion();
  const told = ({ choices, usage }) => ({
    end: choices[0].finish_reason,
    tokens: choices[0].logprobs.content.map(({ token }) => token),
    prompt: usage.prompt_tokens,
    output: usage.completion_tokens,
  });
  return { plain: told(answer), streamed: told(final) };
}

const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "How warm it is in a city.",
      parameters: {
        type: "object",
        properties: { city: { enum: ["Paris", "Nice", "Lyon"] } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];

async function calls() {
  const ask = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, temperature: 0 };
  const answer = (await client.chat.completions.create({ ...ask, max_tokens: 60 })).choices[0];
  const stream = client.chat.completions.stream({ ...ask, max_tokens: 60 });
  const streamed = (await stream.finalChatCompletion()).choices[0];
  const results = answer.message.tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "21" }));
  const after = await client.chat.completions.create({
    model, tools, temperature: 0, max_tokens: 3, messages: [...messages, answer.message, ...results],
  });
  const told = ({ message, finish_reason }) => ({
    end: finish_reason,
    calls: message.tool_calls.map((call) => [call.function.name, call.function.arguments]),
  });
  return { plain: told(answer), streamed: told(streamed), after: after.choices[0].finish_reason };
}

async function structured() {
  const schema = {
    type: "object",
    properties: { city: { type: "string", maxLength: 20 }, size: { enum: ["small", "large"] } },
    required: ["city", "size"],
    additionalProperties: false,
  };
  const response_format = { type: "json_schema", json_schema: { name: "city", schema, strict: true } };
  const answer = await client.chat.completions.create({ model, messages, response_format, temperature: 0 });
  return JSON.parse(answer.choices[0].message.content);
}

async function completions() {
  const ask = { model, prompt: "The capital of France is", temperature: 0, max_tokens: 4 };
  const answer = await client.completions.create(ask);
  let streamed = "";
  for await (const chunk of await client.completions.create({ ...ask, stream: true })) {
    streamed += chunk.choices[0]?.text ?? "";
  }
  return { text: answer.choices[0].text, streamed };
}

async function responses() {
  const ask = { model, input: messages[0].content, temperature: 0, max_output_tokens: 24 };
  const answer = await client.responses.create(ask);
  let deltas = "";
  let whole;
  for await (const event of await client.responses.create({ ...ask, stream: true })) {
    if (event.type === "response.output_text.delta") deltas += event.delta;
    if (event.response) whole = event.response;
  }
  const stream = client.responses.stream(ask);
  const final = await stream.finalResponse();
  return { text: answer.output_text, deltas, status: whole.status, final: final.output_text };
}

async function embeddings() {
  const ask = { model, input: ["a text", "another"] };
  const coded = await client.embeddings.create(ask); // by its own choice, this client asks for base64
  const plain = await client.embeddings.create({ ...ask, encoding_format: "float" });
  const vectors = ({ data }) => data.map(({ embedding }) => Array.from(embedding));
  return { coded: vectors(coded), plain: vectors(plain), tokens: coded.usage.prompt_tokens };
}

async function models() {
  const listed = [];
  for await (const one of client.models.list()) listed.push(one.id);
  return { listed, one: (await client.models.retrieve(model)).id };
}

async function abort() {
  const stream = await client.chat.completions.create({ model, messages, stream: true, ignore_eos: true });
  for await (const chunk of stream) {
    stream.controller.abort();
    return { first: chunk.object };
  }
}

const KINDS = ["BadRequestError", "AuthenticationError", "NotFoundError", "RateLimitError"];

async function failure(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    const kind = KINDS.find((name) => error instanceof OpenAI[name]) ?? error.constructor.name;
    return { kind, status: error.status, code: error.code, param: error.param, id: error.requestID };
  }
}

async function errors() {
  const stranger = new OpenAI({ baseURL: process.env.OCTAVO_URL, apiKey: "wrong", maxRetries: 0 });
  const create = (body, who = client) => who.chat.completions.create({ model, messages, max_tokens: 1, ...body });
  const long = { max_tokens: 8, ignore_eos: true };
  const crowd = await Promise.all(Array.from({ length: 40 }, () => failure(create(long))));
  return {
    wrong: await failure(create({ temperature: 9 })),
    stranger: await failure(create({}, stranger)),
    unknown: await failure(create({ model: "gpt-4" })),
    crowd: crowd.filter((each) => each !== null),
    served: crowd.filter((each) => each === null).length,
  };
}

const seen = {};
for (const ask of [chat, usage, calls, structured, completions, responses, embeddings, models, abort, errors]) {
  seen[ask.name] = await ask();
}
console.log(JSON.stringify(seen));
