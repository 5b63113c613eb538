//! Rules that hold for the output of all commands: errors, notes, lists and JSON documents.

use crate::support::{Ran, Sandbox, have};
use std::process::{Command, Stdio};

#[test]
fn errors_of_all_kinds_have_one_label() {
    let s = Sandbox::new();
    for (words, code, says) in [
        ("disk create", 2, "--size is missing"),
        ("disk list --nosuch", 2, "--nosuch"),
        ("nosuch", 2, "nosuch"),
        ("disk create --size 4X", 2, "'4X' is not a size"),
        ("disk show nosuch", 3, "there is no disk 'nosuch'"),
    ] {
        let ran = s.run(words);
        ran.fails(code, says);
        assert!(ran.err.starts_with("pagefold: error: "), "{ran:?}");
        assert_eq!(ran.err.matches("error:").count(), 1, "{ran:?}");
        assert!(!ran.err.contains('\u{1b}'), "{ran:?}");
    }
    let ran = s.run("disk create --nosuch");
    assert!(ran.err.contains("Usage: pagefold disk create") && ran.err.contains("'--help'"), "{ran:?}");
    let coloured =
        Ran::new("coloured", s.command("disk --nosuch").env("CLICOLOR_FORCE", "1").output().unwrap());
    assert!(
        coloured.err.starts_with("pagefold: \u{1b}[1m\u{1b}[31merror\u{1b}[0m: unexpected"),
        "{coloured:?}"
    );
}

/// A terminal would set its title, and a log would have a forged message.
#[test]
fn names_in_messages_are_escaped() {
    let s = Sandbox::new();
    let hostile = "a\x1b]0;pwn\x07\x1b[31mred\npagefold: error: b";
    let escaped = "a\\u{1b}]0;pwn\\u{7}\\u{1b}[31mred\\npagefold: error: b";
    let mut header = [0; 512];
    let name = format!("../{hostile}");
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(b"00000000000\0");
    header[148..156].copy_from_slice(b"        ");
    header[156..157].copy_from_slice(b"0");
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    std::fs::write(s.path("esc.tar"), [&header[..], &[0; 1024]].concat()).unwrap();
    let (archive, out) = (s.path("esc.tar"), s.path("o"));
    let archive = archive.to_str().unwrap();
    for words in [
        &["image", "build", archive, out.to_str().unwrap()][..],
        &["image", "show", &s.path(hostile).display().to_string()],
        &["image", "build", &format!("--memory={hostile}"), "x", "y"],
        &["image", hostile],
    ] {
        let ran = Ran::new("hostile", s.command("").args(words).output().unwrap());
        assert!(ran.code != 0 && ran.err.contains(escaped), "{ran:?}");
        assert!(!ran.err.contains(|c: char| c.is_control() && c != '\n'), "{ran:?}");
        assert_eq!(ran.err.lines().filter(|line| line.starts_with("pagefold: ")).count(), 1, "{ran:?}");
    }
    // Notes, and arguments in coloured errors.
    let mut coloured = s.command("image");
    coloured.arg(hostile).env("CLICOLOR_FORCE", "1");
    let ran = Ran::new("coloured", coloured.output().unwrap());
    assert!(ran.err.contains(escaped) && !ran.err.contains("\x1b]0"), "{ran:?}");
    std::fs::create_dir(s.path("empty")).unwrap();
    let mut build = s.command("image build");
    // A bracket would begin a class of the pattern.
    let [hostile, escaped] = [hostile, escaped].map(|text| text.replace('[', ""));
    build.args([s.path("empty"), out, format!("--exclude={hostile}").into()]);
    let ran = Ran::new("note", build.output().unwrap());
    let note = format!("pagefold: note: --exclude '{escaped}' matched nothing\n");
    assert!(ran.code == 0 && ran.err == note, "{ran:?}");
}

#[test]
fn quiet_silences_notes_before_and_after_the_command_but_no_results_and_errors() {
    let s = Sandbox::new();
    let noted = s.run("disk list");
    assert!(noted.err.starts_with("pagefold: note: no disks"), "{noted:?}");
    for words in ["-q disk list", "disk --quiet list", "disk list -q"] {
        let ran = s.run(words);
        assert!(ran.code == 0 && ran.err.is_empty() && ran.out.is_empty(), "{ran:?}");
    }
    let created = s.run("-q disk create --size 8M --export nbd --name x");
    assert!(
        created.code == 0 && created.err.is_empty() && created.out.starts_with("nbd+unix:"),
        "{created:?}"
    );
    s.run("-q disk show nosuch").fails(3, "there is no disk");
    // A note of clean-up, too.
    s.kill_disk("x");
    let ran = s.run("disk list -q");
    assert!(ran.code == 0 && ran.err.is_empty() && ran.out.is_empty(), "{ran:?}");
}

#[test]
fn json_documents_begin_with_the_version_of_their_form() {
    let s = Sandbox::new();
    s.ok("disk create --size 8M --export nbd --name x");
    for words in ["disk list --json", "disk show x --json"] {
        let text = s.ok(words);
        assert!(text.starts_with("{\n  \"schema_version\": 1,\n"), "{text}");
    }
}

#[test]
fn numbers_are_split_on_a_terminal_only() {
    let test = "numbers_are_split_on_a_terminal_only";
    if !have("script") {
        pagefold_testkit::skipped!("{test}: needs the program script");
        return;
    }
    let s = Sandbox::new();
    s.ok("disk create --size 8M --export nbd --name x");
    let data = vec![7; 1200 * 4096];
    crate::support::Nbd::connect(&s.runtime().join("x/nbd.sock")).write(0, &data);
    assert!(s.ok("disk show x").contains("in 1200 pages\n"));
    let program = env!("CARGO_BIN_EXE_pagefold");
    let mut command = Command::new("script");
    command.args(["-qec", &format!("{program} disk show x"), "/dev/null"]).stdin(Stdio::null());
    let ran = Ran::new("script", command.env("PAGEFOLD_RUNTIME_DIR", s.runtime()).output().unwrap());
    assert!(ran.out.contains("in 1 200 pages"), "{ran:?}");
}

#[test]
fn lists_have_the_columns_that_the_user_chooses() {
    let s = Sandbox::new();
    let device = s.ok("disk create --size 8M --export nbd --name x");
    s.ok("disk create --size 16M --export nbd --name y");
    let all = s.ok("disk list");
    assert!(all.starts_with("NAME") && all.lines().count() == 3, "{all}");
    assert_eq!(s.ok("disk list --noheadings --output name"), "x\ny\n");
    let chosen = s.ok("disk list --bytes --output Size,NAME");
    assert_eq!(chosen, "SIZE      NAME\n8388608   x\n16777216  y\n");
    let line = s.ok("disk list --noheadings --output device,name");
    assert!(line.starts_with(&format!("{}  x\n", device.trim_end())), "{line}");
    s.run("disk list --output name,nosuch").fails(2, "the columns are NAME, SIZE, STORED, MEMORY, RATIO");
    s.run("disk list --json --bytes").fails(2, "--bytes");
    // The shell's way of using it.
    let words = "for d in $(\"$0\" disk list --noheadings --output NAME); do \"$0\" disk remove \"$d\"; done";
    let mut command = Command::new("sh");
    command.args(["-c", words, env!("CARGO_BIN_EXE_pagefold")]).env("PAGEFOLD_RUNTIME_DIR", s.runtime());
    assert!(command.status().unwrap().success());
    assert_eq!(s.left(), Vec::<String>::new());
}
