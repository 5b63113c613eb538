//! Programs of others that the scripts in `tests/guest` install.

use std::path::Path;
use std::process::Command;

/// Runs a script that installs a program, and returns what it prints, which names the program. The error is the reason why
/// it cannot.
pub fn install(script: &str) -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest").join(script);
    let ran = Command::new("sh").arg(script).output().map_err(|e| e.to_string())?;
    match ran.status.success() {
        true => Ok(String::from_utf8_lossy(&ran.stdout).trim().to_string()),
        false => Err(String::from_utf8_lossy(&ran.stderr).lines().last().unwrap_or_default().to_string()),
    }
}
