//! The header declares what the libraries export, and nothing else.

use crate::support::{CRATE, Installed, Kind, run, text};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Returns the names of the functions that the header declares: identifiers of ours before a parenthesis, outside of
/// comments.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(Path::new(CRATE).join("include/pagefold.h")).unwrap();
    let mut code = String::new();
    for (i, part) in header.split("/*").enumerate() {
        code += if i == 0 { part } else { part.split_once("*/").unwrap().1 };
    }
    let mut names = BTreeSet::new();
    for before in code.split('(') {
        let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
        if name.starts_with("pf_") {
            names.insert(name.to_owned());
        }
    }
    names
}

/// Returns the global symbols that a library defines.
fn defined(options: &[&str], library: &Path) -> BTreeSet<String> {
    let output = run(Command::new("nm").args(options).arg("--defined-only").arg(library));
    let lines = text(&output.stdout);
    let symbols = lines.lines().filter(|line| line.split_whitespace().count() == 3);
    symbols.map(|line| line.split_whitespace().last().unwrap().to_owned()).collect()
}

#[test]
fn both_libraries_export_what_the_header_declares() {
    let Some(installed) = Installed::new("symbols") else { return };
    let declared = declared();
    assert!(declared.contains("pf_region_create") && declared.len() > 15, "{declared:?}");
    assert_eq!(defined(&["-D"], &installed.lib("libpagefold.so")), declared);
    assert_eq!(defined(&["-g"], &installed.lib("libpagefold.a")), declared);
}

#[test]
fn each_function_of_the_header_can_be_linked_in_c_and_cpp() {
    let Some(installed) = Installed::new("prototypes") else { return };
    let mut source = "#include <pagefold.h>\ntypedef void (*any)(void);\nany all[] = {\n".to_owned();
    declared().iter().for_each(|name| source += &format!("    (any)&{name},\n"));
    source += "};\nint main(void) { return all[0] ? 0 : 1; }\n";
    for extension in ["c", "cpp"] {
        let path = installed.path(&format!("prototypes.{extension}"));
        std::fs::write(&path, &source).unwrap();
        for kind in [Kind::Shared, Kind::Static] {
            let program = installed.compile(&path, kind, &[]);
            run(&mut installed.command(&program));
        }
    }
}
