//! An installed library, and programs that use it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Once, OnceLock};

/// The folder of the crate.
pub const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Where the tests install the library: each run of the tests replaces it.
const PREFIX: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/libpagefold");

/// How a program is linked and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Shared,
    Static,
    /// With the shared library and AddressSanitizer.
    Sanitized,
}

pub const KINDS: [Kind; 3] = [Kind::Shared, Kind::Static, Kind::Sanitized];

/// The library, installed once for all tests, and a private folder for programs, which is removed at the end.
pub struct Installed {
    folder: tempfile::TempDir,
}

impl Installed {
    /// Installs the library that cargo built for the tests. Prints a skip message and returns nothing if a program that
    /// this needs is missing.
    pub fn new(test: &str) -> Option<Self> {
        for program in ["cc", "c++", "pkg-config", "ld", "objcopy", "ar", "nm", "python3"] {
            if Command::new(program).arg("--version").output().is_err() {
                pagefold_testkit::skipped!("{test}: there is no {program}");
                return None;
            }
        }
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            let mut install = Command::new(Path::new(CRATE).join("install.sh"));
            run(install.arg("--prefix").arg(PREFIX).arg("--libs").arg(built()));
        });
        Some(Installed { folder: tempfile::tempdir().unwrap() })
    }

    /// Returns a path in the folder for programs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of an installed library.
    pub fn lib(&self, name: &str) -> PathBuf {
        Path::new(PREFIX).join("lib").join(name)
    }

    /// Asks pkg-config for options of a package, "pagefold" or "pagefold-static".
    pub fn pkg_config(&self, package: &str, options: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.lib("pkgconfig")).args(options).arg(package);
        text(&run(&mut command).stdout).split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a C or C++ program, and returns its path.
    pub fn compile(&self, source: &Path, kind: Kind, options: &[&str]) -> PathBuf {
        let is_cpp = source.extension().is_some_and(|extension| extension == "cpp");
        let name = format!("{}-{kind:?}", source.file_stem().unwrap().to_str().unwrap());
        let program = self.path(&name);
        let mut command = Command::new(if is_cpp { "c++" } else { "cc" });
        command.arg(if is_cpp { "-std=c++17" } else { "-std=c11" });
        command.args(["-O2", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]).args(options);
        if kind == Kind::Sanitized {
            command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        }
        let package = if kind == Kind::Static { "pagefold-static" } else { "pagefold" };
        command.arg(source).arg("-o").arg(&program);
        command.args(self.pkg_config(package, &["--cflags", "--libs"]));
        run(&mut command);
        program
    }

    /// Returns the call of a program that [`Installed::compile`] made. One that hangs is ended.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "300"]).arg(program).env("LD_LIBRARY_PATH", self.lib(""));
        command
    }
}

/// Returns whether regions work here, and prints a skip message if not.
pub fn has_regions(test: &str) -> bool {
    let error = pagefold_sys::uffd::kernel_features().err();
    if let Some(error) = &error {
        pagefold_testkit::skipped!("{test}: {error}");
    }
    error.is_none()
}

/// Returns whether programs can be compiled for a kind, and prints a skip message if not.
pub fn can(test: &str, kind: Kind) -> bool {
    static SANITIZER: OnceLock<bool> = OnceLock::new();
    let has_sanitizer = || {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("empty.c"), folder.path().join("empty"));
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let mut command = Command::new("cc");
        command.arg("-fsanitize=address,undefined").arg(&source).arg("-o").arg(&program);
        let is_compiled = command.output().is_ok_and(|output| output.status.success());
        is_compiled && Command::new(&program).output().is_ok_and(|output| output.status.success())
    };
    let can = kind != Kind::Sanitized || *SANITIZER.get_or_init(has_sanitizer);
    if !can {
        pagefold_testkit::skipped!("{test}: the compiler has no AddressSanitizer that runs here");
    }
    can
}

/// Returns the folder in which cargo has put the libraries: that of the test program.
pub fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    output
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
