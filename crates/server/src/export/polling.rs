//! [`polling`]: how the threads of an export wait for their next request.

use pagefold_sys::cpu;
use pagefold_sys::polling::Polling;
use std::time::Duration;

/// The usual time within which requests follow each other closely. A program that waits for each reply takes less than
/// this between requests; what takes longer gains little from CPUs that are awake.
const USUAL: Duration = Duration::from_micros(50);
/// On a machine with more CPUs than this, they are kept awake only if the user says so: all idle ones would poll for one program
/// that uses two.
const CPUS_MAX: usize = 8;

/// How threads wait, by `--poll-us`.
pub fn polling(poll_us: Option<u64>) -> Polling {
    polling_on(cpu::online(), poll_us)
}

fn polling_on(cpus: usize, poll_us: Option<u64>) -> Polling {
    match poll_us {
        Some(0) => Polling::Never,
        Some(us) => Polling::AwakeCpusOrSpin(Duration::from_micros(us)),
        None if cpus <= CPUS_MAX => Polling::AwakeCpus(USUAL),
        None => Polling::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_kept_awake_on_small_machines_or_by_request() {
        assert_eq!(polling_on(2, None), Polling::AwakeCpus(USUAL));
        assert_eq!(polling_on(CPUS_MAX, None), Polling::AwakeCpus(USUAL));
        assert_eq!(polling_on(CPUS_MAX + 1, None), Polling::Never);
        assert_eq!(polling_on(2, Some(0)), Polling::Never);
        assert_eq!(polling_on(CPUS_MAX + 1, Some(7)), Polling::AwakeCpusOrSpin(Duration::from_micros(7)));
    }
}
