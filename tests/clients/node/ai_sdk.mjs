// The AI SDK against a server, by each of its ways to OpenAI's API; prints what it has seen as JSON.
// docs: begin
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const place = {
  baseURL: process.env.OCTAVO_URL, // http://HOST:8000/v1
  apiKey: process.env.OCTAVO_API_KEY,
};
const compatible = createOpenAICompatible({ name: "octavo", ...place, supportsStructuredOutputs: true, includeUsage: true });
const openai = createOpenAI(place);
const name = process.env.OCTAVO_MODEL;
const models = { compatible: compatible.chatModel(name), chat: openai.chat(name), responses: openai.responses(name) };
const prompt = "What is the capital of France?";

async function text(model) {
  const answer = await generateText({ model, prompt, temperature: 0 });
  let streamed = "";
  for await (const piece of streamText({ model, prompt, temperature: 0 }).textStream) streamed += piece;
  return { plain: answer.text, streamed };
}

async function object(model) {
  const schema = z.object({ city: z.string().max(20), size: z.enum(["small", "large"]) });
  const { output } = await generateText({ model, prompt, temperature: 0, output: Output.object({ schema }) });
  return output;
}

const weather = tool({
  description: "How warm it is in a city.",
  inputSchema: z.object({ city: z.enum(["Paris", "Nice", "Lyon"]) }),
  execute: async ({ city }) => ({ city, degrees: 21 }),
});

async function calls(model) {
  const asked = { model, prompt, temperature: 0, maxOutputTokens: 60, tools: { weather }, toolChoice: "required" };
  return await generateText({ ...asked, stopWhen: isStepCount(2) }); // the second step is told the result of the first
}
// docs: end

import { APICallError, embedMany } from "ai";

const quiet = { maxRetries: 0 };

async function chat(model) {
  const messages = [
    { role: "system", content: "Answer in one word." },
    { role: "user", content: [{ type: "text", text: "What is the capital" }, { type: "text", text: "of France?" }] },
    { role: "assistant", content: "Paris." },
    { role: "user", content: "And of Italy?" },
  ];
  const asked = { model, messages, allowSystemInMessages: true, ...quiet, temperature: 0, maxOutputTokens: 4 };
  const answer = await generateText(asked);
  const stream = streamText(asked);
  const streamed = await stream.text;
  const told = ({ inputTokens, outputTokens }) => [inputTokens, outputTokens];
  return {
    plain: [answer.text, answer.finishReason, told(answer.usage)],
    streamed: [streamed, await stream.finishReason, told(await stream.usage)],
  };
}

async function sampling(model) {
  const rest = { topP: 0.9, seed: 7, presencePenalty: 0.1, frequencyPenalty: 0.1, stopSequences: ["Paris"] };
  const answer = await generateText({ model, prompt, ...quiet, temperature: 0.1, maxOutputTokens: 12, ...rest });
  return { text: answer.text, end: answer.finishReason };
}

async function pieces(model) {
  const schema = z.object({ city: z.string().max(20), size: z.enum(["small", "large"]) });
  const stream = streamText({ model, prompt, ...quiet, temperature: 0, output: Output.object({ schema }) });
  let partial = 0;
  for await (const _ of stream.partialOutputStream) partial += 1;
  return { partial, whole: await stream.output };
}

async function called(model) {
  const answer = await calls(model);
  const streamed = streamText({
    model, prompt, ...quiet, temperature: 0, maxOutputTokens: 60,
    tools: { weather }, toolChoice: { type: "tool", toolName: "weather" },
  });
  return {
    steps: answer.steps.map(({ finishReason, toolCalls, toolResults }) => ({
      end: finishReason,
      inputs: toolCalls.map(({ toolName, input }) => [toolName, input]),
      results: toolResults.map(({ output }) => output),
    })),
    streamed: (await streamed.toolCalls).map(({ toolName, input }) => [toolName, input]),
  };
}

async function offered(model) {
  const strict = tool({ ...weather, strict: true, execute: undefined });
  const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'; // none of the schema's
  const turn = [{ role: "user", content: "Weather?" }, { role: "assistant", content: call }];
  const messages = [...turn, ...turn, { role: "user", content: "Weather?" }];
  const asked = { model, messages, ...quiet, temperature: 0, maxOutputTokens: 60, tools: { weather: strict } };
  const answer = await generateText(asked);
  const stream = streamText(asked);
  const calls = (made) => made.map(({ toolName, input }) => [toolName, input]);
  const loose = await generateText({ ...asked, tools: { weather: tool({ ...strict, strict: false }) } });
  return {
    loose: calls(loose.toolCalls),
    plain: [calls(answer.toolCalls), answer.finishReason],
    streamed: [calls(await stream.toolCalls), await stream.finishReason],
  };
}

async function failure(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    return { known: APICallError.isInstance(error), status: error.statusCode, retry: error.isRetryable, says: error.message };
  }
}

const ASKED = { text, object, chat, sampling, pieces, called, offered };
const seen = {};
for (const [way, model] of Object.entries(models)) {
  seen[way] = {};
  for (const [part, ask] of Object.entries(ASKED)) {
    try {
      seen[way][part] = await ask(model);
    } catch (error) {
      seen[way][part] = { failed: `${error.name}: ${error.message}`, body: error.responseBody, sent: error.requestBodyValues };
    }
  }
  seen[way].wrong = await failure(generateText({ model, prompt, temperature: 9, ...quiet }));
}
const values = ["a text", "another"];
const embedded = async (model) => (await embedMany({ model, values, ...quiet })).embeddings;
seen.embeddings = {
  compatible: await embedded(compatible.embeddingModel(name)),
  openai: await embedded(openai.embedding(name)),
};
const completed = await generateText({
  model: compatible.completionModel(name), prompt, temperature: 0, maxOutputTokens: 12, ...quiet,
});
seen.completion = completed.text;
console.log(JSON.stringify(seen));
