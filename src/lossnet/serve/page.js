"use strict";
const form = document.querySelector("form"), said = document.querySelector("#said"), answer = document.querySelector("#answer");
const show = (text, kind, body) => { said.textContent = text; said.className = kind; answer.hidden = !body; answer.textContent = body; };
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = form.elements.request.value, headers = {"Content-Type": "application/json"};
  try { JSON.parse(body); } catch (error) { return show(`This is not JSON: ${error.message}`, "bad", ""); }
  if (form.elements.token?.value) headers.Authorization = `Bearer ${form.elements.token.value}`;
  show("Asking…", "note", "");
  const started = performance.now();
  try {
    const response = await fetch("predict", {method: "POST", headers, body}), text = await response.text();
    const took = Math.round(performance.now() - started);
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 1); } catch { /* shown as it came */ }
    show(`${response.status} ${response.statusText}, ${took} ms`, response.ok ? "good" : "bad", shown);
  } catch (error) {
    show(`No answer: ${error.message}`, "bad", "");
  }
});
