"use strict";
const form = document.querySelector("form"), said = document.querySelector("#said"), buttons = [...document.querySelectorAll("[data-label]")];
const known = new Map(), next = new Map([[undefined, 1], [1, 0], [0, undefined]]), words = new Map([[1, "set"], [0, "ruled out"], [undefined, "open"]]);
let last = 0;
const say = (text, kind) => { said.textContent = text; said.className = kind; };
const show = (chances) => {
  for (const button of buttons) {
    const name = button.dataset.label, state = known.get(name), percent = Math.round(100 * chances[name]);
    button.dataset.state = words.get(state);
    button.style.setProperty("--chance", chances[name]);
    button.querySelector("output").textContent = `${percent} %`;
    button.setAttribute("aria-label", `${name}: ${words.get(state)}, ${percent} %`);
  }
};
const ask = async () => {
  const turn = ++last, headers = {"Content-Type": "application/json"};
  let instance;
  try { instance = JSON.parse(form.elements.request.value); } catch (error) { return say(`This is not JSON: ${error.message}`, "bad"); }
  if (form.elements.token?.value) headers.Authorization = `Bearer ${form.elements.token.value}`;
  const body = JSON.stringify({instances: [instance], known: [known.size ? Object.fromEntries(known) : null]});
  try {
    const response = await fetch("predict", {method: "POST", headers, body}), answer = await response.json();
    if (turn !== last) return;
    if (!response.ok) return say(answer.detail, "bad");
    say(`Predicted: ${answer.predictions[0].labels.join(", ") || "none"}`, "good");
    show(answer.predictions[0].probabilities);
  } catch (error) {
    say(`No answer: ${error.message}`, "bad");
  }
};
for (const button of buttons) {
  button.addEventListener("click", () => {
    const state = next.get(known.get(button.dataset.label));
    if (state === undefined) known.delete(button.dataset.label); else known.set(button.dataset.label, state);
    ask();
  });
}
form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
document.querySelector("#open").addEventListener("click", () => { known.clear(); ask(); });
ask();
