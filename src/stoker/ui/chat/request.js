// What the server is asked for the next message of a conversation.
import { path } from '../state/tree.js';

/** The body of a chat completion that answers the path up to `node`. */
export function requestOf(chat, node, model) {
  const messages = messagesOf(chat, node);
  const tools = toolsOf(chat);
  return { messages, ...(model && { model }), ...chat.sampling, ...(tools.length && { tools }) };
}

export function messagesOf(chat, node) {
  const messages = path({ ...chat, leaf: node.id }).filter(({ role, content, tool_calls: calls, attachments }) => role === 'tool' || content || calls?.length || attachments?.length).map(messageOf);
  if (chat.system.trim()) messages.unshift({ role: 'system', content: chat.system });
  return messages;
}

function messageOf({ role, content, tool_calls: calls, tool_call_id: callId, attachments = [] }) {
  if (role === 'tool') return { role, content, tool_call_id: callId };
  const texts = attachments.filter(({ text }) => text !== undefined).map(({ name, text }) => `${name}:\n\`\`\`\n${text}\n\`\`\``);
  const text = [...texts, content].filter(Boolean).join('\n\n');
  const images = attachments.filter(({ url }) => url);
  const parts = images.map(({ url }) => ({ type: 'image_url', image_url: { url } }));
  return { role, content: images.length ? [{ type: 'text', text }, ...parts] : text, ...(calls?.length && { tool_calls: calls }) };
}

/** The tools of a conversation; its settings have checked them. */
function toolsOf(chat) {
  if (!chat.tools) return [];
  const tools = JSON.parse(chat.tools);
  return tools.map((tool) => (tool.function ? tool : { type: 'function', function: tool }));
}
