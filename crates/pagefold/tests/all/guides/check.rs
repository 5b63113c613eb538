//! The commands in README.md and in the guides work: they are run, in order, and their options exist.
//!
//! A block ```` ```sh ```` has commands, a block ```` ```console ```` commands behind a prompt (`# ` as root, `$ ` as
//! any user) with sample output. Of the output only the labels are compared. A command whose sample shows an error of
//! pagefold must fail. Blocks with the attribute `no_run` are not run; the options in them are checked, as in the text.
//! A block ```` ```rust ```` is a test of the crate `guides`, and ```` ```python ```` one of `crates/python`;
//! ```` ```text ```` is not checked. No other blocks may exist.

mod labels;
mod markdown;
mod options;
mod session;
mod shell;

use crate::support::Sandbox;
use markdown::{Document, Language};
use session::Session;
use std::path::Path;

/// Checks a document and runs its commands. The error is a list of faults.
pub fn check(name: &str, text: &str) -> Result<(), String> {
    let document = Document::parse(text);
    let sandbox = Sandbox::new();
    let mut faults: Vec<String> = document.faults.iter().map(|fault| format!("{name}: {fault}")).collect();
    for (line, script) in scripts(&document) {
        faults.extend(device_in(&script).map(|fault| format!("{name}, line {line}: {fault}")));
        for words in shell::commands(&script) {
            let found = shell::arguments(&words).map(|arguments| options::faults(&sandbox, arguments));
            faults.extend(found.into_iter().flatten().map(|fault| format!("{name}, line {line}: {fault}")));
        }
    }
    let session = Session::new(name, &document.blocks).map_err(|more| faults.extend(more));
    let Some(session) = session.ok().filter(|_| faults.is_empty()) else { return Err(faults.join("\n")) };
    if let Some(why) = session.obstacle() {
        pagefold_testkit::skipped!("guides::{name}: {why}");
        return Ok(());
    }
    let ran = session.run(&sandbox);
    let left = session::left_behind(&sandbox);
    ran?;
    if left.is_empty() { Ok(()) } else { Err(format!("{name} leaves behind: {}", left.join(", "))) }
}

/// The fault of a script that names a device, which may belong to another program where a reader pastes it.
fn device_in(script: &str) -> Option<String> {
    const HARMLESS: [&str; 9] =
        ["null", "zero", "urandom", "stdin", "stdout", "stderr", "fuse", "loopN", "zram0"];
    let names = script.split("/dev/").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        &rest[..end]
    });
    let mut found = names.filter(|name| !name.is_empty() && !HARMLESS.contains(name));
    found.next().map(|name| {
        format!("/dev/{name} may belong to another program: use \"$dev\", which a command has printed")
    })
}

/// The commands of a document with their lines: in blocks, run or not, and in the text.
fn scripts(document: &Document) -> Vec<(usize, String)> {
    let mut scripts = Vec::new();
    for block in &document.blocks {
        match block.language {
            Language::Sh => scripts.push((block.line, block.code.join("\n"))),
            Language::Console => {
                let steps = block.steps().into_iter().flatten();
                scripts.extend(steps.map(|step| (step.line, step.command)));
            }
            Language::Rust | Language::Python | Language::Text => {}
        }
    }
    for (line, text) in &document.prose {
        for code in text.split('`').skip(1).step_by(2) {
            let is_command = |kind: &str| {
                let name = code.strip_prefix(kind);
                name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
            };
            if code.starts_with("pagefold ") {
                scripts.push((*line, code.to_string()));
            } else if is_command("disk ") || is_command("image ") {
                scripts.push((*line, format!("pagefold {code}")));
            }
        }
    }
    scripts
}

/// Checks a document of the repository, and that its Rust examples are tested.
pub fn check_document(path: &str) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(top.join(path)).unwrap();
    let examples = std::fs::read_to_string(top.join("dev/guides/src/lib.rs")).unwrap();
    let included = format!("#[doc = include_str!(\"../../../{path}\")]");
    assert!(examples.contains(&included), "dev/guides does not test the Rust examples of {path}");
    let python = std::fs::read_to_string(top.join("crates/python/tests/test_guides.py")).unwrap();
    let is_run = !text.contains("```python") || python.contains(&format!("\"{path}\""));
    assert!(is_run, "crates/python/tests/test_guides.py does not run the Python examples of {path}");
    let name = path.trim_start_matches("docs/").trim_end_matches(".md");
    if let Err(faults) = check(name, &text) {
        panic!("{faults}");
    }
}
