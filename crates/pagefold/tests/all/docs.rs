//! Help, manual pages and completions are complete.

use crate::support::help::options;
use crate::support::{Sandbox, have};
use pagefold_control::export_kind::ExportKind;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

const COMMANDS: &[&str] = &[
    "",
    "disk",
    "disk create",
    "disk list",
    "disk show",
    "disk block-state",
    "disk set",
    "disk recompress",
    "disk writeback",
    "disk save",
    "disk saved",
    "disk unit",
    "disk restart",
    "disk remove",
    "image",
    "image ls",
    "image cat",
    "image mount",
    "image unmount",
    "image restart",
    "image mounts",
    "image stats",
    "image show",
    "image extract",
    "image build",
    "image tar",
    "image check",
    "image copy",
    "image push",
    "image digest",
    #[cfg(feature = "zram")]
    "zram-shell",
    #[cfg(feature = "zram")]
    "zram-tree",
    "completions",
];

#[test]
fn every_option_of_help_is_in_the_manual_and_the_completions() {
    let s = Sandbox::new();
    let dir = s.path("man");
    s.ok(&format!("man --dir {}", dir.display()));
    let bash = s.ok("completions bash");
    for command in COMMANDS {
        let help = s.ok(&format!("{command} --help"));
        let page = dir.join(format!("{}.1", format!("pagefold {command}").trim_end().replace(' ', "-")));
        let page = std::fs::read_to_string(&page).unwrap();
        // The lines that define options; the text around them also names options of other programs.
        let defined: Vec<_> = help.lines().filter(|line| line.trim_start().starts_with('-')).collect();
        let wanted = options(&defined.join("\n"));
        assert!(wanted.contains("--help"), "{help}");
        assert!(options(&page).is_superset(&wanted), "{command}: {wanted:?} are not all in\n{page}");
        for option in &wanted {
            assert!(bash.contains(option), "{option} of '{command}' has no completion");
        }
    }
    let pages = std::fs::read_dir(&dir).unwrap().count();
    assert_eq!(pages, COMMANDS.len() + 1, "the list of commands in this test is incomplete");
    assert!(!bash.contains("serve"), "the hidden command is in the completions");
}

#[test]
fn the_table_of_exports_in_the_guide_and_the_help_are_those_of_the_program() {
    let guide = include_str!("../../../../docs/disk.md");
    let help = Sandbox::new().ok("disk create --help");
    let schema = include_str!("../../../../docs/json/disk-show.schema.json");
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    let names = schema["properties"]["export"]["description"].as_str().unwrap();
    for facts in ExportKind::ALL.map(ExportKind::facts) {
        let swap = if facts.is_for_swap { "yes" } else { "no" };
        let row = format!(
            "| `{}` | {} | {} | {} | {swap} | {} |",
            facts.name, facts.access, facts.needs, facts.prints, facts.stop
        );
        assert!(guide.contains(&row), "the table of exports in docs/disk.md has no row\n{row}");
        assert!(help.contains(&format!("- {}:", facts.name)), "{help}");
        assert!(names.contains(&format!("`{}`", facts.name)), "disk-show.schema.json: {names}");
    }
}

#[test]
fn the_manual_lists_exit_codes_files_and_attributes() {
    let s = Sandbox::new();
    let main = s.ok("man");
    for word in [
        ".SH \"EXIT STATUS\"",
        ".SH \"FILES\"",
        "/run/pagefold",
        "XDG_RUNTIME_DIR",
        "in use",
        "damaged",
        "NO_COLOR",
    ] {
        assert!(main.contains(word), "{word} is not in\n{main}");
    }
    let dir = s.path("man");
    s.ok(&format!("man --dir {}", dir.display()));
    let set = std::fs::read_to_string(dir.join("pagefold-disk-set.1")).unwrap();
    for attribute in
        ["mem_limit", "mm_stat", "same_filled_pages_enabled", "compact", "writeback", "writeback_high"]
    {
        assert!(set.contains(attribute), "{attribute} is not in\n{set}");
    }
    let create = std::fs::read_to_string(dir.join("pagefold-disk-create.1")).unwrap();
    for word in ["volatile", "zstd", "levels", "not encrypted", "removed"] {
        assert!(create.contains(word), "{word} is not in\n{create}");
    }
}

#[test]
fn the_manual_page_of_a_command_is_shown_by_man_on_a_terminal() {
    let s = Sandbox::new();
    for words in ["man disk create", "man image mount", "man man"] {
        let page = s.ok(words);
        assert!(page.contains(".TH pagefold"), "{words}: {page}");
    }
    assert!(s.ok("man disk create").contains("codec"));
    s.run("man disk nosuch")
        .fails(2, "'pagefold disk' has no command 'nosuch'; its commands are block-state, create, list,");
    s.run("man disk create x").fails(2, "no manual page");
    if !have("script") {
        pagefold_testkit::skipped!(
            "the_manual_page_of_a_command_is_shown_by_man_on_a_terminal: needs script"
        );
        return;
    }
    // A program in the place of man(1), so that the test does not depend on it.
    let (bin, program) = (s.path("bin"), env!("CARGO_BIN_EXE_pagefold"));
    std::fs::create_dir(&bin).unwrap();
    let on_terminal = |man: Option<&str>| {
        let _ = std::fs::remove_file(bin.join("man"));
        if let Some(script) = man {
            std::fs::write(bin.join("man"), format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(bin.join("man"), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("PATH={}:$PATH", bin.display());
        let without = "PATH=/nonexistent".to_string();
        let path = if man.is_some() { path } else { without };
        let line = format!("{path} {program} man disk list");
        let output = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let shown = on_terminal(Some("echo shown with $@; grep -c noheadings"));
    assert!(shown.starts_with("shown with -l -") && !shown.contains(".TH"), "{shown}");
    for failing in [Some("cat >/dev/null; exit 1"), None] {
        assert!(on_terminal(failing).contains(".TH pagefold"), "{failing:?}");
    }
}

#[test]
fn an_alias_names_the_manual_page_of_its_command() {
    let s = Sandbox::new();
    assert_eq!(s.ok("man disk ls"), s.ok("man disk list"));
    assert_eq!(s.ok("man disk rm"), s.ok("man disk remove"));
}

#[test]
fn completions_exist_for_every_shell() {
    let s = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = s.ok(&format!("completions {shell}"));
        assert!(script.contains("create") && script.contains("codec"), "{shell}");
    }
    s.run("completions tcsh").fails(2, "bash");
}

#[test]
fn help_and_version_succeed_and_a_missing_command_is_a_usage_error() {
    let s = Sandbox::new();
    assert!(s.ok("--version").starts_with("pagefold "));
    let help = s.ok("disk --help");
    for command in ["create", "list", "show", "set", "writeback", "remove"] {
        assert!(help.contains(command));
    }
    assert_eq!(s.run("").code, 2);
    assert_eq!(s.run("disk").code, 2);
}
