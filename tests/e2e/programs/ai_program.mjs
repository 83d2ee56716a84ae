// The ai package of npm, over its OpenAI-compatible provider: chat, whole and streamed.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [base, , message] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "octavo", baseURL: base, apiKey: "none", includeUsage: true });
const common = {
  model: provider("tiny"),
  prompt: message,
  temperature: 0,
  maxOutputTokens: 12,
  maxRetries: 0,
  providerOptions: { octavo: { ignore_eos: true } },
};
const whole = await generateText(common);
let streamed = "";
for await (const piece of streamText(common).textStream) streamed += piece;
console.log(JSON.stringify({ chat: whole.text, streamed, tokens: whole.usage.outputTokens }));
