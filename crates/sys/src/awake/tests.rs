//! Tests of awake CPUs, on a machine that notes what is asked of it, and on this one.

use super::*;
use std::io::Read;
use std::sync::mpsc::{Receiver, Sender, channel};

const SOON: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_secs(60);
/// As many requests wake the thread, wherever the count is.
const ENOUGH: u32 = 2 * OFTEN;

/// The choices of a test.
#[derive(Default)]
struct Chosen {
    /// Whether CPUs are never idle, instead of always.
    is_busy: AtomicBool,
    /// Whether the threads do not sleep between requests.
    are_crowded: AtomicBool,
}

/// Sends what is asked for.
struct Fake {
    asked: Sender<bool>,
    chosen: Arc<Chosen>,
    begin: Instant,
    sleeps: u64,
}

impl Machine for Fake {
    fn keep_awake(&mut self, awake: bool) {
        self.asked.send(awake).unwrap();
    }

    fn times(&mut self) -> Option<CpuTimes> {
        let all = u64::try_from(self.begin.elapsed().as_micros()).unwrap();
        Some(CpuTimes { idle: if self.chosen.is_busy.load(Ordering::SeqCst) { 0 } else { all }, all })
    }

    fn sleeps(&mut self) -> u64 {
        self.sleeps += if self.chosen.are_crowded.load(Ordering::SeqCst) { 0 } else { u64::from(u32::MAX) };
        self.sleeps
    }
}

struct Started {
    awake: AwakeCpus,
    asked: Receiver<bool>,
    chosen: Arc<Chosen>,
}

fn start(soon: Duration) -> Started {
    let (sender, asked) = channel();
    let chosen = Arc::new(Chosen::default());
    let fake = Fake { asked: sender, chosen: chosen.clone(), begin: Instant::now(), sleeps: 0 };
    Started { awake: AwakeCpus::start_on(soon, fake).unwrap(), asked, chosen }
}

/// Notes as many requests at the present time, each this long after the reply before.
fn note(awake: &AwakeCpus, requests: u32, waited: Duration) {
    (0..requests).for_each(|_| awake.note(awake.now_ns(), waited));
}

#[test]
fn cpus_are_kept_awake_while_requests_come_soon_and_not_longer() {
    let Started { awake, asked, .. } = start(SOON);
    let begin = Instant::now();
    for _ in 0..2 {
        while asked.try_recv() != Ok(true) {
            note(&awake, ENOUGH, SOON);
            assert!(begin.elapsed() < LONG);
        }
        // No more requests.
        assert_eq!(asked.recv_timeout(LONG), Ok(false));
    }
    // While they come, the request stands.
    let begin = Instant::now();
    while asked.try_recv() != Ok(true) {
        note(&awake, ENOUGH, SOON);
        assert!(begin.elapsed() < LONG);
    }
    let begin = Instant::now();
    while begin.elapsed() < 5 * PERIOD {
        note(&awake, ENOUGH, SOON);
    }
    drop(awake);
    let rest = asked.iter().collect::<Vec<_>>();
    assert_eq!(rest.last(), Some(&false), "{rest:?}");
}

#[test]
fn threads_that_take_turns_have_the_times_of_all() {
    let Started { awake, asked, .. } = start(LONG);
    let begin = Instant::now();
    while asked.try_recv() != Ok(true) {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    (0..OFTEN).for_each(|_| {
                        awake.note_reply();
                        awake.note_request();
                    });
                });
            }
        });
        assert!(begin.elapsed() < LONG);
    }
    let Started { awake, asked, .. } = start(Duration::ZERO);
    for _ in 0..ENOUGH {
        awake.note_reply();
        std::thread::sleep(Duration::from_micros(100));
        awake.note_request();
    }
    drop(awake);
    assert_eq!(asked.iter().count(), 0);
}

#[test]
fn late_requests_and_few_let_cpus_sleep() {
    let Started { awake, asked, .. } = start(SOON);
    note(&awake, 10 * OFTEN, SOON + Duration::from_nanos(1));
    note(&awake, OFTEN - 1, SOON);
    drop(awake);
    assert_eq!(asked.iter().count(), 0);
    // A few requests at a time, for however long.
    let Started { awake, asked, .. } = start(SOON);
    let period_ns = u64::try_from(PERIOD.as_nanos()).unwrap();
    for burst in 1..1000 {
        (0..OFTEN / 2).for_each(|_| awake.note(burst * (period_ns + 1), SOON));
    }
    drop(awake);
    assert_eq!(asked.iter().count(), 0);
}

#[test]
fn cpus_of_a_busy_machine_may_sleep() {
    cpus_may_sleep_while(|chosen| &chosen.is_busy, 3 * WINDOW);
}

#[test]
fn cpus_may_sleep_while_many_requests_come_at_a_time() {
    cpus_may_sleep_while(|chosen| &chosen.are_crowded, 10 * PERIOD);
}

/// Checks that CPUs may sleep after the choice, until it is taken back. Nothing changes after so long without a change.
fn cpus_may_sleep_while(choice: impl Fn(&Chosen) -> &AtomicBool, settled: Duration) {
    let Started { awake, asked, chosen } = start(SOON);
    let note_for = |time: Duration| {
        let begin = Instant::now();
        while begin.elapsed() < time {
            note(&awake, ENOUGH, SOON);
        }
    };
    for _ in 0..2 {
        choice(&chosen).store(false, Ordering::SeqCst);
        let begin = Instant::now();
        while asked.try_recv() != Ok(true) {
            note_for(PERIOD);
            assert!(begin.elapsed() < LONG);
        }
        choice(&chosen).store(true, Ordering::SeqCst);
        // A thread of this test may have to wait for a CPU so long that requests do not come often meanwhile.
        let mut last = true;
        while let Some(change) = asked.try_iter().last().or(last.then_some(true)) {
            last = change;
            note_for(settled);
            assert!(begin.elapsed() < LONG);
        }
        // It is not asked while that is so, nor when requests come again after they have not.
        for _ in 0..2 {
            note_for(WINDOW);
            std::thread::sleep(4 * PERIOD);
        }
        assert_eq!(asked.try_iter().count(), 0);
    }
}

#[test]
fn the_times_of_cpus_are_read() {
    let line = |text: &str| cpu_times(text.as_bytes());
    let times = CpuTimes { idle: 4 + 5, all: 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 };
    assert_eq!(line("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1"), Some(times));
    for wrong in
        ["", "cpu  1 2 3 4 5 6 7 8 9 10", "cpu  1 2 3 4 5 6 7\n", "cpu  1 2 x 4 5 6 7 8\n", "intr 1\n"]
    {
        assert_eq!(line(wrong), None, "{wrong}");
    }
    let mut kernel =
        Kernel { device: File::open("/dev/null").unwrap(), limit_us: POLL, times: File::open(TIMES).ok() };
    let before = kernel.times().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let after = kernel.times().unwrap();
    // The time that CPUs wait for devices may fall a little.
    assert!(after.all > before.all && after.idle + 2 >= before.idle, "{before:?} {after:?}");
    let sleeps = kernel.sleeps();
    std::thread::sleep(Duration::from_millis(1));
    assert!(kernel.sleeps() > sleeps);
    let (idle, all) = (after.idle.saturating_sub(before.idle), after.all - before.all);
    assert!(idle <= all + 2, "{before:?} {after:?}");
}

#[test]
fn a_machine_may_have_no_driver_of_idle_cpus() {
    assert_eq!(named_driver("haltpoll\n"), Some(IDLE_DRIVER_OF_GUESTS));
    assert_eq!(named_driver("none\n"), None);
    assert_eq!(named_driver("\n"), None);
}

/// The present limit of all processes, us.
fn limit_us() -> Option<i32> {
    let mut limit = [0; 4];
    File::open(DEVICE).and_then(|mut device| device.read_exact(&mut limit)).ok()?;
    Some(i32::from_ne_bytes(limit))
}

#[test]
fn the_kernel_takes_the_request_and_forgets_it() {
    let test = "the_kernel_takes_the_request_and_forgets_it";
    let Some(before) = limit_us().filter(|limit| *limit > LIGHT_SLEEP) else {
        return pagefold_testkit::skipped!("{test}: {DEVICE} cannot be read, or another process uses it");
    };
    let Ok(mut kernel) = Kernel::open() else {
        return pagefold_testkit::skipped!("{test}: {DEVICE} cannot be opened, or idle CPUs have no driver");
    };
    // Programs of others do not matter here.
    kernel.times = None;
    let awake = AwakeCpus::start_on(SOON, kernel).unwrap();
    let all_times = || cpu_times(&std::fs::read(TIMES).unwrap()).unwrap();
    let (deadline, times) = (Instant::now() + LONG, all_times());
    while limit_us().is_none_or(|limit| limit > LIGHT_SLEEP) {
        if Instant::now() >= deadline {
            let now = all_times();
            let (idle, all) = (now.idle.saturating_sub(times.idle), now.all - times.all);
            assert!(idle < all / 2, "{idle} of {all}");
            return pagefold_testkit::skipped!("{test}: other programs keep the machine busy");
        }
        // A process that does not sleep between requests has many at a time.
        std::thread::sleep(Duration::from_micros(10));
        note(&awake, 1, SOON);
    }
    drop(awake);
    let deadline = Instant::now() + LONG;
    while limit_us() != Some(before) {
        assert!(Instant::now() < deadline);
    }
}
