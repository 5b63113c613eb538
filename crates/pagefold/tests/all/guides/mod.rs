//! The commands in README.md and in the guides work: they are run, in order, and their options exist.
//!
//! A block ```` ```sh ```` has commands, a block ```` ```console ```` commands behind a prompt (`# ` as root, `$ ` as
//! any user) with sample output. Of the output only the labels are compared. A command whose sample shows an error of
//! pagefold must fail. Blocks with the attribute `no_run` are not run; the options in them are checked, as in the text.
//! A block ```` ```rust ```` is a test of the crate `guides`; ```` ```text ```` is not checked. No other blocks may
//! exist.

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
fn check(name: &str, text: &str) -> Result<(), String> {
    let document = Document::parse(text);
    let sandbox = Sandbox::new();
    let mut faults: Vec<String> = document.faults.iter().map(|fault| format!("{name}: {fault}")).collect();
    for (line, script) in scripts(&document) {
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
            Language::Rust | Language::Text => {}
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
fn check_document(path: &str) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(top.join(path)).unwrap();
    let examples = std::fs::read_to_string(top.join("crates/guides/src/lib.rs")).unwrap();
    let included = format!("#[doc = include_str!(\"../../../{path}\")]");
    assert!(examples.contains(&included), "crates/guides does not test the Rust examples of {path}");
    let name = path.trim_start_matches("docs/").trim_end_matches(".md");
    if let Err(faults) = check(name, &text) {
        panic!("{faults}");
    }
}

#[test]
fn readme() {
    check_document("README.md");
}

#[test]
fn disk() {
    check_document("docs/disk.md");
}

#[test]
fn image() {
    check_document("docs/image.md");
}

#[test]
fn memory() {
    check_document("docs/memory.md");
}

#[test]
fn reference() {
    check_document("docs/reference.md");
}

#[test]
fn zram() {
    check_document("docs/zram.md");
}

/// The faults of a document that consists of this text.
fn faults(text: &str) -> String {
    check("test", text).unwrap_err()
}

#[test]
fn blocks_that_no_test_would_check_are_faults() {
    assert!(faults("```\ncode\n```\n").contains("language of the block is none"));
    assert!(faults("```toml\ncode\n```\n").contains("language of the block is toml"));
    assert!(faults("```rust ignore\ncode\n```\n").contains("'ignore'"));
    assert!(faults("Text\n\n    code\n").contains("line 3: an indented code block"));
    assert!(faults("- item\n\n      code\n").contains("line 3: an indented code block"));
    assert!(faults("```sh\ntrue\n").contains("not closed"));
    assert!(faults("```console\noutput\n```\n").contains("sample output without a command"));
    check("test", "- item\n\n    - item\n\n  more\n  ```text\n  code\n  ```\n").unwrap();
}

#[test]
fn commands_and_options_that_do_not_exist_are_faults() {
    assert!(faults("```sh no_run\npagefold disk made\n```\n").contains("no command 'pagefold disk made'"));
    assert!(faults("```sh no_run\npagefold disk list --jsn\n```\n").contains("has no option --jsn"));
    assert!(faults("```sh no_run\ncargo run -- disk list -Z\n```\n").contains("has no option -Z"));
    assert!(faults("See `disk create --sise 1G`.\n").contains("has no option --sise"));
    assert!(faults("See `pagefold image COMMAND --hlp`.\n").contains("has no option --hlp"));
}

#[test]
fn commands_that_fail_are_faults() {
    assert!(faults("```sh\ntrue\nfalse\n```\n").starts_with("line 2 of test: exit status: 1"));
    assert!(faults("```console\n$ false && true\n```\n").starts_with("line 2 of test: exit status: 1"));
    assert!(faults("```console\n$ true\npagefold: error: no\n```\n").contains("but the command succeeded"));
    assert!(
        faults("```sh\nmkfs.ext4 /dev/loop0\n```\n").contains("/dev/loop0 may belong to another program")
    );
    check("test", "```console\n$ false\npagefold: error: no\n$ grep -q Line app.erofs\n```\n").unwrap();
    check("test", "```sh no_run\nfalse\n```\n").unwrap();
}

#[test]
fn labels_that_do_not_exist_are_faults() {
    let sample = |label: &str| format!("```console\n$ pagefold image show app.erofs\n{label:<20}6.1\n```\n");
    check("test", &sample("  kernel")).unwrap();
    assert!(faults(&sample("  core")).contains("line 2: 'core' is not in the output"));
}

#[test]
fn disks_that_are_left_behind_are_faults() {
    let create = "pagefold disk create --size 1M --name x --export nbd";
    assert_eq!(faults(&format!("```sh\n{create}\n```\n")), "test leaves behind: x");
    check("test", &format!("```sh\n{create}\npagefold disk remove x\n```\n")).unwrap();
    if !crate::support::is_root() {
        pagefold_testkit::skipped!("disks_that_are_left_behind_are_faults: needs root");
        return;
    }
    let mount = "mkdir mnt\nmount -t tmpfs none mnt";
    assert!(faults(&format!("```sh\n{mount}\n```\n")).contains("leaves behind: a mount on"));
}
