//! Help, manual pages and completions say the same.

use crate::support::Sandbox;
use std::collections::BTreeSet;

const COMMANDS: [&str; 17] = [
    "",
    "disk",
    "disk create",
    "disk list",
    "disk show",
    "disk set",
    "disk park",
    "disk remove",
    "image",
    "image list",
    "image cat",
    "image mount",
    "image unmount",
    "image show",
    "image extract",
    "image check",
    "completions",
];

/// The long options in a text.
fn flags(text: &str) -> BTreeSet<String> {
    let plain = text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "");
    let words = plain.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|w| w.len() > 3 && w.starts_with("--")).map(str::to_string).collect()
}

#[test]
fn every_flag_of_help_is_in_the_manual_and_the_completions() {
    let s = Sandbox::new();
    let dir = s.path("man");
    s.ok(&format!("man --dir {}", dir.display()));
    let bash = s.ok("completions bash");
    for command in COMMANDS {
        let help = s.ok(&format!("{command} --help"));
        let page = dir.join(format!("{}.1", format!("pagefold {command}").trim_end().replace(' ', "-")));
        let page = std::fs::read_to_string(&page).unwrap();
        let wanted = flags(&help);
        assert!(wanted.contains("--help"), "{help}");
        assert!(flags(&page).is_superset(&wanted), "{command}: {wanted:?} are not all in\n{page}");
        for flag in &wanted {
            assert!(bash.contains(flag), "{flag} of '{command}' has no completion");
        }
    }
    let pages = std::fs::read_dir(&dir).unwrap().count();
    assert_eq!(pages, COMMANDS.len() + 1, "a command is missing in this test");
    assert!(!bash.contains("serve"), "the server is no command");
}

#[test]
fn the_manual_has_exit_codes_files_and_attributes() {
    let s = Sandbox::new();
    let main = s.ok("man");
    for word in ["Exit codes", "/run/pagefold", "XDG_RUNTIME_DIR", "disk is in use", "NO_COLOR"] {
        assert!(main.contains(word), "{word} is not in\n{main}");
    }
    let dir = s.path("man");
    s.ok(&format!("man --dir {}", dir.display()));
    let set = std::fs::read_to_string(dir.join("pagefold-disk-set.1")).unwrap();
    for attribute in
        ["mem_limit", "mm_stat", "same_filled_pages_enabled", "compact", "writeback", "park_high"]
    {
        assert!(set.contains(attribute), "{attribute} is not in\n{set}");
    }
    let create = std::fs::read_to_string(dir.join("pagefold-disk-create.1")).unwrap();
    for word in ["volatile", "zstd", "levels", "plain text", "removed"] {
        assert!(create.contains(word), "{word} is not in\n{create}");
    }
}

/// The names of all fields in an object and the objects in it, but for the texts by attribute name.
fn fields(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    let Some(object) = value.as_object() else { return };
    for (name, value) in object {
        found.insert(name.clone());
        if name != "attributes" {
            fields(value, found);
        }
    }
}

#[test]
fn every_field_of_the_json_is_documented() {
    let doc = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let doc = std::fs::read_to_string(doc).unwrap();
    let s = Sandbox::new();
    s.ok(&format!("disk create -q --door nbd --size 1M --name x --backing {}", s.path("park").display()));
    let mut found = BTreeSet::new();
    fields(&s.show("x"), &mut found);
    fields(&serde_json::from_str(&s.ok("disk park x --all --json")).unwrap(), &mut found);
    assert!(found.contains("write_ratio") && found.contains("failure"), "{found:?}");
    for name in found {
        let forms = [format!("`{name}`"), format!("`{name}."), format!(".{name}`"), format!("\"{name}\"")];
        let is_there = forms.iter().any(|form| doc.contains(form));
        assert!(is_there, "{name} is not in docs/json.md");
    }
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
fn help_and_version_are_success_and_nothing_is_usage() {
    let s = Sandbox::new();
    assert!(s.ok("--version").starts_with("pagefold "));
    let help = s.ok("disk --help");
    for command in ["create", "list", "show", "set", "park", "remove"] {
        assert!(help.contains(command));
    }
    assert_eq!(s.run("").code, 2);
    assert_eq!(s.run("disk").code, 2);
}
