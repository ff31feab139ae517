// What the server is asked for the next message of a conversation.
import { path } from '../state/tree.js';

/** The body of a chat completion that answers the path up to `node`. */
export function requestOf(chat, node, model) {
  const messages = messagesOf(chat, node);
  const tools = toolsOf(chat);
  const lora = Object.entries(chat.adapters ?? {}).map(([name, scale]) => ({ name, scale }));
  const thinking = chat.thinking && { chat_template_kwargs: { enable_thinking: chat.thinking === 'on' } };
  return { messages, ...(model && { model }), ...chat.sampling, ...(tools.length && { tools }), ...(lora.length && { lora }), ...thinking };
}

export function messagesOf(chat, node) {
  const messages = path({ ...chat, leaf: node.id }).filter(({ role, content, tool_calls: calls, attachments }) => role === 'tool' || content || calls?.length || attachments?.length).map(messageOf);
  if (chat.system.trim()) messages.unshift({ role: 'system', content: chat.system });
  return messages;
}

function messageOf({ role, content, tool_calls: calls, tool_call_id: callId, attachments = [] }) {
  if (role === 'tool') return { role, content, tool_call_id: callId };
  const texts = attachments.filter(({ text }) => text !== undefined).map(({ name, text }) => `${name}:\n${fenced(text)}`);
  const text = [...texts, content].filter(Boolean).join('\n\n');
  const parts = attachments.filter(({ url }) => url).map(partOf);
  return { role, content: parts.length ? [...(text ? [{ type: 'text', text }] : []), ...parts] : text, ...(calls?.length && { tool_calls: calls }) };
}

/** A fence that is longer than any in the text, so that the text does not end it. */
function fenced(text) {
  const fence = '`'.repeat(Math.max(3, ...[...text.matchAll(/`{3,}/g)].map(([ticks]) => ticks.length + 1)));
  return `${fence}\n${text}\n${fence}`;
}

function partOf({ name, url, kind }) {
  if (kind === 'audio') return { type: 'input_audio', input_audio: { data: url.slice(url.indexOf(',') + 1), format: name.split('.').at(-1) } };
  return kind === 'pdf' ? { type: 'file', file: { filename: name, file_data: url } } : { type: 'image_url', image_url: { url } };
}

/** The tools of a conversation; its settings have checked them. */
function toolsOf(chat) {
  if (!chat.tools) return [];
  const tools = JSON.parse(chat.tools);
  return tools.map((tool) => (tool.function ? tool : { type: 'function', function: tool }));
}
