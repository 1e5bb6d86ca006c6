/* The backend of the page: `models()`, `post(path, body)` and `stream(path, body, onEvent)`, here of a server.
   Each rejects with an Error whose message is a sentence for the user; `code` is the HTTP status. */
"use strict";
globalThis.unmask ??= {};

unmask.httpBackend = (root) => {
  let key = "";

  async function call(path, body, signal) {
    const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
    const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
    let response;
    try {
      response = await fetch(root + path, { ...options, headers, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer; check that `unmask serve` is running.");
    }
    if (!response.ok) throw await failure(response);
    return response;
  }

  async function failure(response) {
    const content = await response.json().catch(() => ({}));
    const message = content.error?.message ?? `The server answered with status ${response.status}.`;
    return Object.assign(new Error(message), { code: response.status });
  }

  return {
    features: { score: true, constraints: true },
    useKey(value) {
      key = value;
    },
    async models() {
      return (await (await call("/v1/models")).json()).data;
    },
    async post(path, body, signal) {
      return (await call(path, body, signal)).json();
    },
    async stream(path, body, onEvent, signal) {
      const response = await call(path, { ...body, diffusing: true }, signal);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("The connection ended before the text was finished; run it again.");
        const blocks = (rest + value.replaceAll("\r", "")).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const lines = block.split("\n").filter((line) => line.startsWith("data:"));
          const data = lines.map((line) => line.slice(5).trim()).join("\n");
          if (data === "[DONE]") return;
          if (!data) continue;
          const event = JSON.parse(data);
          if (event.error) throw new Error(event.error.message);
          onEvent(event);
        }
      }
    },
  };
};
