//! The files that `install.sh` installs.

use crate::support::{CRATE, Installed, Kind, built, run, text};
use std::path::Path;
use std::process::Command;

#[test]
fn the_shared_library_has_a_soname_and_links() {
    let Some(installed) = Installed::new("soname") else { return };
    let link = |name: &str| std::fs::read_link(installed.lib(name)).unwrap().display().to_string();
    assert_eq!(link("libpagefold.so"), "libpagefold.so.0");
    assert_eq!(link("libpagefold.so.0"), concat!("libpagefold.so.", env!("CARGO_PKG_VERSION")));
    let dynamic = run(Command::new("readelf").arg("-d").arg(installed.lib("libpagefold.so")));
    assert!(text(&dynamic.stdout).contains("[libpagefold.so.0]"), "{}", text(&dynamic.stdout));
}

#[test]
fn the_shared_library_is_never_unloaded() {
    let Some(installed) = Installed::new("nodelete") else { return };
    // Its signal handlers, its function for forked children and its threads go on.
    let dynamic = run(Command::new("readelf").arg("-d").arg(installed.lib("libpagefold.so")));
    assert!(text(&dynamic.stdout).contains("NODELETE"), "{}", text(&dynamic.stdout));
}

#[test]
fn pkg_config_knows_the_version_and_the_folders() {
    let Some(installed) = Installed::new("pkg-config") else { return };
    assert_eq!(installed.pkg_config("pagefold", &["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let lib = concat!(env!("CARGO_TARGET_TMPDIR"), "/libpagefold/lib").to_owned();
    assert_eq!(installed.pkg_config("pagefold", &["--libs"]), [format!("-L{lib}"), "-lpagefold".to_owned()]);
    assert_eq!(installed.pkg_config("pagefold", &["--variable=libdir"]), [lib]);
}

#[test]
fn programs_contain_the_static_library_if_they_ask_for_it() {
    let Some(installed) = Installed::new("static") else { return };
    let source = installed.path("version.c");
    let text_of_program =
        "#include <pagefold.h>\n#include <stdio.h>\nint main(void) { return puts(pf_version()) < 0; }\n";
    std::fs::write(&source, text_of_program).unwrap();
    let needs_library = |program: &Path| {
        let dynamic = run(Command::new("readelf").arg("-d").arg(program));
        text(&dynamic.stdout).contains("libpagefold")
    };
    let [shared, contained] = [Kind::Shared, Kind::Static].map(|kind| installed.compile(&source, kind, &[]));
    assert!(needs_library(&shared) && !needs_library(&contained));
    run(&mut Command::new(&contained));
    // A program without any shared library: the usual meaning of pkg-config's option.
    let alone = installed.path("alone");
    let mut command = Command::new("cc");
    command.arg("-static").arg(&source).arg("-o").arg(&alone);
    command.args(installed.pkg_config("pagefold", &["--static", "--cflags", "--libs"]));
    run(&mut command);
    run(&mut Command::new(&alone));
}

#[test]
fn packages_are_staged_in_another_folder() {
    if Installed::new("destdir").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut install = Command::new(Path::new(CRATE).join("install.sh"));
    install.args(["--prefix", "/usr", "--libdir", "/usr/lib/some-linux", "--destdir"]).arg(folder.path());
    run(install.arg("--libs").arg(built()));
    let pc = folder.path().join("usr/lib/some-linux/pkgconfig/pagefold.pc");
    let pc = std::fs::read_to_string(pc).unwrap();
    assert!(pc.starts_with("prefix=/usr\nlibdir=/usr/lib/some-linux\nincludedir=/usr/include\n"), "{pc}");
    assert!(folder.path().join("usr/include/pagefold.h").is_file());
    assert!(folder.path().join("usr/lib/some-linux/pkgconfig/pagefold-static.pc").is_file());
    let refused =
        Command::new(Path::new(CRATE).join("install.sh")).args(["--prefx", "/usr"]).output().unwrap();
    assert!(!refused.status.success() && text(&refused.stderr).contains("unknown option --prefx"));
}
