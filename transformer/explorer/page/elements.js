"use strict";
// The elements of a page, by their ids or new, and its data.

const at = (id) => document.getElementById(id);
const contents = JSON.parse(at("data").textContent);

// Text only ever becomes text: no output of a model is read as markup.
function make(name, attributes = {}, ...children) {
  const drawn = ["svg", "g", "rect", "text", "path", "circle", "title"].includes(name);
  const space = drawn ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const signed = (number, digits) => number.toFixed(digits).replace("-", "−");
