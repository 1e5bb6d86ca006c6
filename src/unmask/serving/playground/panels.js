/* What is shown below a canvas: one token and its alternatives, scores with error bars, the code of a run. */
"use strict";

(() => {
  const { html, useState } = htmPreact;
  const { colour, percent, visible, spoken } = unmask;
  const quoted = (text) => `“${spoken(text)}”`;

  function TokenPanel({ run, canvas, alternatives, onPin, onMark, onChoose, onClose }) {
    const position = run.selected, token = canvas.tokens[position];
    const facts = [`position ${position + 1}`];
    if (token.id === null) facts.push("masked");
    else if (token.confidence === null) facts.push("given");
    else facts.push(`call ${token.call}`, `${(100 * token.confidence).toFixed(1)} %`);
    const pinned = run.pins.has(position), marked = run.marks.has(position);
    return html`
      <section class="token-panel" aria-label="Token">
        <div class="row">
          <h3>${token.id === null ? "A masked position" : quoted(token.text)}</h3>
          <span class="quiet">${facts.join(" · ")}</span>
          <span class="grow"></span>
          <button type="button" aria-pressed=${pinned} disabled=${token.id === null} onClick=${onPin}>
            ${pinned ? "Unpin" : "Pin"}
          </button>
          <button type="button" aria-pressed=${marked} disabled=${token.id === null} onClick=${onMark}>
            ${marked ? "Keep" : "Mask"}
          </button>
          <button type="button" onClick=${onClose}>Close</button>
        </div>
        <h4>Alternatives, given all other tokens</h4>
        ${alternatives?.error && html`<p class="error" role="alert">${alternatives.error}</p>`}
        ${!alternatives && html`<p class="quiet">Asking the model…</p>`}
        ${alternatives?.list && html`
          <ul class="alternatives">
            ${alternatives.list.map((one) => html`
              <li key=${one.id}>
                <button type="button" aria-pressed=${one.id === token.id} onClick=${() => onChoose(one)}
                  style=${{ "--colour": colour(one.probability), "--p": one.probability }}>
                  <b>${visible(one.text).replace(/^ /, "␣")}</b><span>${(100 * one.probability).toFixed(1)} %</span>
                </button>
              </li>`)}
          </ul>`}
      </section>`;
  }

  /* Scored texts on one axis, each with a whisker of twice its Monte-Carlo error to both sides. */
  function Scores({ scores, onClear }) {
    if (!scores.length) return null;
    const known = scores.filter((one) => one.bits);
    const reach = (one) => one.bits.value + 2 * (one.bits.monte_carlo_error ?? 0);
    const top = Math.max(0.1, ...known.map(reach)) * 1.08, place = (value) => `${(100 * Math.max(0, value)) / top}%`;
    return html`
      <section class="card" aria-labelledby="scores">
        <div class="row"><h2 id="scores">Scores</h2><span class="grow"></span>
          <button type="button" onClick=${onClear}>Clear</button></div>
        <p class="quiet">Bits per character; lower is more likely. The whisker is twice the Monte-Carlo error.</p>
        <ol class="scores">
          ${scores.map((one) => html`
            <li key=${one.key}>
              <p class="scored" title=${one.text}>${one.text}</p>
              ${one.error && html`<p class="error" role="alert">${one.error}</p>`}
              ${!one.bits && !one.error && html`<p class="quiet">Scoring…</p>`}
              ${one.bits && html`
                <div class="axis" aria-hidden="true">
                  <i class="whisker" style=${{
                    left: place(one.bits.value - 2 * (one.bits.monte_carlo_error ?? 0)),
                    right: `calc(100% - ${place(reach(one))})`,
                  }}></i>
                  <i class="dot" style=${{ left: place(one.bits.value) }}></i>
                </div>
                <p class="figures">
                  <b>${one.bits.value.toFixed(3)} ± ${(one.bits.monte_carlo_error ?? 0).toFixed(3)}</b> bits per character,
                  perplexity ${one.perplexity.value.toFixed(2)} ± ${(one.perplexity.monte_carlo_error ?? 0).toFixed(2)},
                  ${" "}${one.tokens} tokens, ${one.exact ? "exact" : "an upper bound"}, ${one.model}
                </p>`}
            </li>`)}
        </ol>
      </section>`;
  }

  function Code({ runs, maskOf, root }) {
    const [kind, choose] = useState("python"), [at, show] = useState(0), [copied, say] = useState("");
    const run = runs[Math.min(at, runs.length - 1)], length = run.frames[0]?.tokens.length;
    if (length === undefined) return null;
    const code = {
      python: () => unmask.pythonOf(run.request, length, maskOf(run)),
      command: () => unmask.commandOf(run.request, length),
      curl: () => unmask.curlOf(run.request, root),
    }[kind]();
    const names = { python: "Python", command: "Command line", ...(root && { curl: "HTTP" }) };
    const copy = async () => {
      await copyText(code);
      say(`${names[kind]} copied.`);
      setTimeout(() => say(""), 3000);
    };
    return html`
      <section class="card" aria-labelledby="code">
        <div class="row">
          <h2 id="code">The same text by code</h2>
          <span class="grow"></span>
          <div class="segmented" role="radiogroup" aria-label="Language">
            ${Object.entries(names).map(([one, name]) => html`
              <label><input type="radio" name="code" checked=${kind === one} onChange=${() => choose(one)} /><span>${name}</span></label>`)}
          </div>
          <button type="button" onClick=${copy}>Copy</button>
        </div>
        ${runs.length > 1 && html`
          <label class="inline">Of <select value=${at} onChange=${(event) => show(Number(event.target.value))}>
            ${runs.map((one, index) => html`<option value=${index}>${one.title}</option>`)}
          </select></label>`}
        <pre tabindex="0" aria-label=${names[kind]}><code>${code}</code></pre>
        <p class="quiet" role="status">${copied}</p>
      </section>`;
  }

  async function copyText(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  Object.assign(unmask, { TokenPanel, Scores, Code, percent });
})();
