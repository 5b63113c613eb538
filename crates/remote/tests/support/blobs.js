// Starts Azurite with a blob, and prints lines: "endpoint" with the URL of the account, "sas" with a signature for reading, and
// "ready". Ends with its standard input.
//
// usage: node blobs.js AZURITE-SCRIPT FILE FOLDER

const { spawn } = require("node:child_process");
const crypto = require("node:crypto");
const fs = require("node:fs");
const http = require("node:http");

const [script, file, folder] = process.argv.slice(2);
const account = "devstoreaccount1";
const key = Buffer.from(
  "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
  "base64",
);
const version = "2021-08-06";
const sign = (text) => crypto.createHmac("sha256", key).update(text, "utf8").digest("base64");

const azurite = spawn(process.execPath, [
  script, "--blobPort", "0", "--location", folder, "--skipApiVersionCheck", "--disableTelemetry",
]);
process.stdin.on("end", () => azurite.kill()).resume();
azurite.on("exit", () => process.exit(1));

// Sends a PUT, signed by the key of the account.
function put(port, path, query, headers, body) {
  const own = { "x-ms-date": new Date().toUTCString(), "x-ms-version": version, ...headers };
  const names = Object.keys(own).sort();
  const canonical = names.map((name) => `${name}:${own[name]}\n`).join("");
  const resource = `/${account}/${account}${path}` + query.map(([name, value]) => `\n${name}:${value}`).join("");
  const text = `PUT\n\n\n${body.length || ""}\n\n\n\n\n\n\n\n\n${canonical}${resource}`;
  const search = query.map(([name, value]) => `${name}=${value}`).join("&");
  const options = {
    method: "PUT", host: "127.0.0.1", port, path: `/${account}${path}?${search}`,
    headers: { ...own, "content-length": body.length, authorization: `SharedKey ${account}:${sign(text)}` },
  };
  return new Promise((resolve, reject) => {
    const request = http.request(options, (answer) => {
      let read = "";
      answer.on("data", (piece) => (read += piece));
      answer.on("end", () => (answer.statusCode === 201 ? resolve() : reject(new Error(read))));
    });
    request.on("error", reject);
    request.end(body);
  });
}

// A signature for reading the blobs of a container, for an hour.
function sas(container) {
  const expiry = new Date(Date.now() + 3600_000).toISOString().slice(0, 19) + "Z";
  const fields = ["r", "", expiry, `/blob/${account}/${container}`, "", "", "", version, "c", "", "", "", "", "", "", ""];
  const query = { sp: "r", se: expiry, sv: version, sr: "c", sig: sign(fields.join("\n")) };
  return new URLSearchParams(query).toString();
}

let output = "";
azurite.stdout.on("data", async (piece) => {
  const was = output;
  output += piece;
  const found = /successfully listen(?:s|ing) on http:\/\/127\.0\.0\.1:(\d+)/;
  if (found.test(was) || !found.test(output)) return;
  const port = Number(found.exec(output)[1]);
  try {
    for (const [container, access] of [["images", {}], ["public", { "x-ms-blob-public-access": "blob" }]]) {
      await put(port, `/${container}`, [["restype", "container"]], access, Buffer.alloc(0));
      const body = fs.readFileSync(file);
      await put(port, `/${container}/a%20b/app.erofs`, [], { "x-ms-blob-type": "BlockBlob" }, body);
    }
    console.log(`endpoint http://127.0.0.1:${port}/${account}\nsas ${sas("images")}\nready`);
  } catch (error) {
    console.error(error.message);
    azurite.kill();
  }
});
