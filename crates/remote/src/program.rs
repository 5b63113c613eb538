//! Runs a program that prints credentials, with a limit of time and of output.
//!
//! Programs run in the command that the user typed, with the user's environment: never in the server of a mount.

use pagefold_sys::detach::in_new_session;
use pagefold_sys::signal::unblock_termination_in;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{ErrorKind, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The longest output, bytes.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// The longest time of a program.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Why a program has no output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProgramError {
    /// There is no such program.
    #[error("it is not installed")]
    Missing,
    /// It ended with this status.
    #[error("it failed: {0}")]
    Status(ExitStatus),
    /// It could not be run, or did not do its work.
    #[error("{0}")]
    Failed(String),
}

/// The pause between two looks whether a program has ended, after its output has.
const POLL: Duration = Duration::from_millis(2);

/// Runs a program with this input, and returns its output. The error says what happened, without the output, which may be
/// a secret; what the program writes to standard error is seen by the user.
pub(crate) fn run(mut command: Command, input: &[u8], limit: Duration) -> Result<Vec<u8>, ProgramError> {
    // Without a terminal: a program that asks there would be stopped until the limit of time.
    in_new_session(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    // A command that writes a file has blocked the signals that end it. A program that starts others could not end them.
    unblock_termination_in(&mut command);
    let mut child = command.spawn().map_err(|e| match e.kind() {
        ErrorKind::NotFound => ProgramError::Missing,
        _ => ProgramError::Failed(e.to_string()),
    })?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let input = input.to_vec();
    let (sender, receiver) = channel();
    let work = move || {
        // A program that does not read its input may still print.
        let _ = stdin.map(|mut pipe| pipe.write_all(&input));
        let mut output = Vec::new();
        let read = stdout.map(|pipe| pipe.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut output));
        let _ = sender.send(read.transpose().map(|_| output).map_err(|e| e.to_string()));
    };
    let reader = std::thread::Builder::new().name("program".into()).spawn(work);
    let reader = reader.map_err(|e| {
        end(&mut child);
        ProgramError::Failed(e.to_string())
    })?;
    let late = || format!("it has not ended within {} s", limit.as_secs_f32());
    let deadline = Instant::now() + limit;
    let output = receiver.recv_timeout(limit).inspect(|_| {
        // It ends now. The caller may start a process, which needs a caller with one thread.
        let _ = reader.join();
    });
    let output = output.unwrap_or_else(|_| Err(late()));
    let ended = output.and_then(|output| match output.len() as u64 <= MAX_OUTPUT_BYTES {
        true => wait(&mut child, deadline)
            .transpose()
            .unwrap_or_else(|| Err(late()))
            .map(|status| (output, status)),
        false => Err("its output is too long".to_string()),
    });
    match ended {
        Ok((output, status)) if status.success() => Ok(output),
        Ok((_, status)) => Err(ProgramError::Status(status)),
        Err(why) => {
            end(&mut child);
            Err(ProgramError::Failed(why))
        }
    }
}

/// Waits for the end of a program that has closed its output; `None` at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>, String> {
    loop {
        let ended = child.try_wait().map_err(|e| e.to_string())?;
        if ended.is_some() || Instant::now() >= deadline {
            return Ok(ended);
        }
        std::thread::sleep(POLL);
    }
}

/// Kills the program and those that it started.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: &str, limit: Duration) -> Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let output = run(command, input.as_bytes(), limit).map_err(|e| e.to_string());
        output.map(|output| String::from_utf8(output).unwrap())
    }

    #[test]
    fn output_is_returned_and_failures_are_reasons() {
        assert_eq!(shell("cat; echo b", "a", TIME_LIMIT), Ok("ab\n".into()));
        assert!(shell("echo secret; exit 3", "", TIME_LIMIT).unwrap_err().contains("exit status: 3"));
        assert_eq!(shell("yes", "", TIME_LIMIT), Err("its output is too long".into()));
        assert_eq!(run(Command::new("/nonexistent"), b"", TIME_LIMIT), Err(ProgramError::Missing));
    }

    #[test]
    fn a_program_can_be_terminated_although_the_command_blocks_signals() {
        let run = || {
            let _signals = pagefold_sys::signal::Termination::listen().unwrap();
            ["INT", "TERM", "HUP"].map(|name| shell(&format!("kill -{name} $$; echo alive"), "", TIME_LIMIT))
        };
        for ended in std::thread::spawn(run).join().unwrap() {
            assert!(ended.as_ref().is_err_and(|why| why.contains("signal")), "{ended:?}");
        }
    }

    /// The sixth field of `stat` is the session, which is the program's.
    #[test]
    fn a_program_has_no_terminal_to_ask_at() {
        let script = "read -r _ _ _ _ _ session _ < /proc/$$/stat; [ $session = $$ ] && echo alone";
        assert_eq!(shell(script, "", TIME_LIMIT), Ok("alone\n".into()));
        assert!(shell("read -r answer < /dev/tty", "", TIME_LIMIT).unwrap_err().contains("it failed"));
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() {
        let start = Instant::now();
        for script in ["sleep 100 & sleep 100", "echo a; exec >&-; sleep 100"] {
            let error = shell(script, "", Duration::from_millis(200)).unwrap_err();
            assert!(error.contains("within 0.2 s") && start.elapsed() < Duration::from_secs(5), "{error}");
        }
    }
}
