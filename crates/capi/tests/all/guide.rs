//! The C examples of `docs/c.md` compile.

use crate::support::{CRATE, Installed, run};
use std::path::Path;
use std::process::Command;

#[test]
fn the_examples_of_the_guide_compile() {
    let Some(installed) = Installed::new("guide") else { return };
    let guide = std::fs::read_to_string(Path::new(CRATE).join("../../docs/c.md")).unwrap();
    let mut blocks = 0;
    for block in guide.split("\n```").skip(1).step_by(2) {
        let (language, code) = block.split_once('\n').unwrap();
        match language {
            "sh no_run" => continue,
            "c" => blocks += 1,
            other => panic!("a block is '{other}', which no test checks"),
        }
        let source = installed.path(&format!("guide{blocks}.c"));
        std::fs::write(&source, code).unwrap();
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-c", "-o"]);
        command.arg(installed.path("guide.o")).args(installed.pkg_config("pagefold", &["--cflags"]));
        run(command.arg(&source));
    }
    assert!(blocks >= 5);
}
