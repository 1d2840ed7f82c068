// `http.js server`: answers each request with the checksum of its body and the body itself, by pipe.
// `http.js client ADDRESS`: prints checksums, which depend on nothing but this file. `http.js forever ADDRESS`.
'use strict';
const { createHash } = require('crypto');
const http = require('http');
const net = require('net');

const digest = (data) => createHash('sha256').update(data).digest('hex').slice(0, 16);

function body(number) {
  const sizes = [0, 10, 1000, 70000, 2000000];
  const bytes = Buffer.alloc(sizes[number % sizes.length]);
  for (let place = 0; place < bytes.length; place++) bytes[place] = (place * 7 + number * 13 + (place >> 9)) & 255;
  return bytes;
}

function server() {
  http.createServer((request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
      const all = Buffer.concat(parts);
      response.setHeader('X-Digest', digest(all));
      response.end(all);
    });
  }).listen(8000, '0.0.0.0');
  net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(8001, '0.0.0.0');
}

function ask(agent, number) {
  return new Promise((resolve, reject) => {
    const sent = body(number);
    const request = http.request({ agent, host: process.argv[3], port: 8000, method: 'POST' }, (response) => {
      const parts = [];
      response.on('error', reject);
      response.on('data', (part) => parts.push(part));
      response.on('end', () => {
        const all = Buffer.concat(parts);
        const same = digest(all) === digest(sent) && response.headers['x-digest'] === digest(sent);
        same ? resolve(digest(all)) : reject(new Error(`answer ${number} differs`));
      });
    });
    request.on('error', reject);
    request.end(sent);
  });
}

function echo() {
  return new Promise((resolve, reject) => {
    const socket = net.connect({ host: process.argv[3], port: 8001, allowHalfOpen: true });
    const parts = [];
    socket.on('data', (part) => parts.push(part));
    socket.on('end', () => resolve(digest(Buffer.concat(parts))));
    socket.on('error', reject);
    for (let number = 0; number < 10; number++) socket.write(body(number));
    socket.end();
  });
}

async function client() {
  const kept = new http.Agent({ keepAlive: true, maxSockets: 6 });
  console.log('kept', ...await Promise.all([...Array(30).keys()].map((number) => ask(kept, number))));
  kept.destroy();
  const single = new http.Agent({ keepAlive: false });
  console.log('single', ...await Promise.all([...Array(20).keys()].map((number) => ask(single, number))));
  console.log('echo', ...await Promise.all([echo(), echo()]));
}

async function forever() {
  const kept = new http.Agent({ keepAlive: true, maxSockets: 6 });
  for (let number = 0; ; number += 6) {
    await Promise.all([0, 1, 2, 3, 4, 5].map((part) => ask(kept, number + part)));
  }
}

({ server, client, forever })[process.argv[2]]();
