// The openai package of npm: chat, whole and streamed, and a completion.
import OpenAI from "openai";

const [base, prompt, message] = process.argv.slice(2);
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const common = { model: "tiny", temperature: 0, max_tokens: 12, ignore_eos: true };
const messages = [{ role: "user", content: message }];
const whole = await client.chat.completions.create({ ...common, messages });
let streamed = "";
for await (const piece of await client.chat.completions.create({ ...common, messages, stream: true })) {
  streamed += piece.choices[0]?.delta?.content ?? "";
}
const completed = await client.completions.create({ ...common, prompt });
let refused = "";
try {
  await client.completions.create({ ...common, prompt, temprature: 1 });
} catch (error) {
  refused = `${error.status} ${error.param}`;
}
console.log(
  JSON.stringify({
    chat: whole.choices[0].message.content,
    streamed,
    completion: completed.choices[0].text,
    tokens: whole.usage.completion_tokens,
    refused,
  }),
);
