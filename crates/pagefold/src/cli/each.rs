//! Commands on several things: they go on after a failure.

use super::output;
use pagefold_control::error::{CliError, Result};

/// Calls `run` for each item. If it fails for some of several, prints these errors when they occur, and returns an
/// error with the exit code of the first of them; `summary` completes its message, as in "2 of 3 disks were not
/// removed".
pub fn each<T>(items: &[T], summary: &str, mut run: impl FnMut(&T) -> Result<()>) -> Result<()> {
    if let [item] = items {
        return run(item);
    }
    let failures: Vec<_> = items
        .iter()
        .filter_map(|item| run(item).err())
        .inspect(|failure| output::error(&failure.message))
        .map(|failure| failure.exit)
        .collect();
    match failures.first() {
        None => Ok(()),
        Some(exit) => Err(CliError::new(*exit, format!("{} of {} {summary}", failures.len(), items.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_control::error::Exit;

    #[test]
    fn the_others_are_done_and_the_first_failure_decides_the_exit_code() {
        let mut done = Vec::new();
        let failure = each(&[1, 2, 3, 4], "things failed", |n| {
            done.push(*n);
            match n {
                2 => Err(CliError::new(Exit::Busy, "busy")),
                4 => Err(CliError::new(Exit::NotFound, "missing")),
                _ => Ok(()),
            }
        });
        assert_eq!(failure, Err(CliError::new(Exit::Busy, "2 of 4 things failed")));
        assert_eq!(done, [1, 2, 3, 4]);
        let alone = each(&[1], "", |_| Err(CliError::failed("its message")));
        assert_eq!(alone, Err(CliError::failed("its message")));
        assert_eq!(each(&[0; 0], "", |_| Ok(())), Ok(()));
    }
}
