//! Writes the JSON Schemas of the commands' JSON:
//! `cargo run -p pagefold-control --features schema --example schemas docs/json`.
#![allow(clippy::unwrap_used, reason = "a developer's tool")]

fn main() {
    let dir = std::path::PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "docs/json".into()));
    std::fs::create_dir_all(&dir).unwrap();
    for (command, schema) in pagefold_control::report::schema::all() {
        let path = dir.join(format!("{command}.schema.json"));
        std::fs::write(path, serde_json::to_string_pretty(&schema).unwrap() + "\n").unwrap();
    }
}
