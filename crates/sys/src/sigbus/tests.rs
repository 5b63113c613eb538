//! Tests of the handler, each in a separate process: a test runs this test program again with the name of a case.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::thread::UnfitThread;
use super::*;
use crate::mem::Reservation;
use crate::uffd::{Uffd, UffdOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::os::unix::thread::JoinHandleExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize};

const PAGE: usize = 4096;
const CASE: &str = "PAGEFOLD_TEST_SIGBUS_CASE";

#[derive(Debug, PartialEq)]
enum End {
    Passed,
    KilledBySigbus,
}

/// Runs a case in a separate process.
fn run(case: &str) -> End {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sigbus::tests::child", "--ignored", "--nocapture"]).env(CASE, case);
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) if stdout.contains("1 passed") => {
            stderr.lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| eprintln!("{line}"));
            End::Passed
        }
        (None, Some(libc::SIGBUS)) => End::KilledBySigbus,
        _ => panic!("{case}: {:?}\n{stdout}\n{stderr}", output.status),
    }
}

#[test]
#[ignore = "the other tests run it, each in a separate process"]
fn child() {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is whole.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
    match std::env::var(CASE).unwrap().as_str() {
        "served" => served(),
        "siginfo" => siginfo(),
        "plain" => plain(),
        "one_shot" => one_shot(),
        "default" => foreign_after(libc::SIG_DFL),
        "ignored" => foreign_after(libc::SIG_IGN),
        "runtime" => foreign_after_runtime(),
        "sent" => sent(),
        "sent_default" => sent_after(libc::SIG_DFL),
        "sent_ignored" => sent_after(libc::SIG_IGN),
        "restart" => restart(),
        "twice" => twice(),
        "later" => later(),
        "alternate" => alternate(),
        "userfaultfd" => userfaultfd(),
        case => panic!("{case}"),
    }
}

/// A mapping that is longer than its file: accessing a page beyond the file's end raises SIGBUS, until the file is
/// extended.
struct Hollow {
    file: OwnedFd,
    base: *mut u8,
}

impl Hollow {
    const PAGES: usize = 4;

    fn new() -> Self {
        let file = rustix::fs::memfd_create("hollow", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let (len, rights) = (Self::PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Hollow { file, base: base.cast() }
    }

    fn at(&self, page: usize) -> *mut u8 {
        assert!(page < Self::PAGES);
        self.base.wrapping_add(page * PAGE)
    }

    fn read(&self, page: usize) -> u8 {
        // SAFETY: the byte is inside the mapping (`at` checks); either the handler extends the file, or the process
        // ends.
        unsafe { self.at(page).read_volatile() }
    }

    fn write(&self, page: usize) {
        // SAFETY: the byte is inside the mapping (`at` checks); either the handler extends the file, or the process
        // ends.
        unsafe { self.at(page).write_volatile(1) }
    }

    /// Extends the file to the page of `address`. Returns false if the address is not in the mapping. A signal handler
    /// may call it.
    fn fill(&self, address: usize) -> bool {
        let page = address.wrapping_sub(self.base.addr()) / PAGE;
        // SAFETY: the call takes numbers only.
        page < Self::PAGES
            && unsafe { libc::ftruncate(self.file.as_raw_fd(), ((page + 1) * PAGE) as libc::off_t) } == 0
    }
}

// SAFETY: the value holds an address and a descriptor; the tests access the memory in single bytes, and only one thread
// of a test accesses it at a time.
unsafe impl Sync for Hollow {}
// SAFETY: the value holds an address and a descriptor, neither of which is bound to a thread.
unsafe impl Send for Hollow {}

static SERVED: OnceLock<Hollow> = OnceLock::new();
static FOREIGN: OnceLock<Hollow> = OnceLock::new();

fn foreign() -> &'static Hollow {
    FOREIGN.get_or_init(Hollow::new)
}

/// The mask, accesses and codes that the handlers record for the tests.
static MASK: AtomicU64 = AtomicU64::new(0);
static WRITES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(i32::MAX);

/// The calling thread's signal mask, in the kernel's form.
fn mask() -> u64 {
    let mut mask = 0u64;
    // SAFETY: the kernel writes as many bytes to `mask` as the last argument says, which is its size.
    unsafe {
        let nothing = std::ptr::null::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, nothing, &raw mut mask, KERNEL_SET_BYTES);
    }
    mask
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Installs one of the `Serve` functions of these tests.
fn install(serve: Serve) -> Result<(), SysError> {
    // SAFETY: these functions store to atomics and make system calls; they allocate nothing, take no locks, and access
    // no missing pages of the memory that they serve.
    unsafe { super::install(serve) }
}

fn serve_hollow(address: usize, is_write: bool) -> bool {
    MASK.store(mask(), Ordering::Relaxed);
    WRITES.fetch_add(is_write.into(), Ordering::Relaxed);
    // SAFETY: the call fails and only sets `errno`, as -1 is no descriptor.
    unsafe { libc::close(-1) };
    SERVED.get().is_some_and(|hollow| hollow.fill(address))
}

fn errno_ptr() -> *mut c_int {
    // SAFETY: the call returns the address of the calling thread's `errno`, and has no conditions.
    unsafe { libc::__errno_location() }
}

fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's `errno`, to which no reference exists.
    unsafe { *errno_ptr() = errno };
}

fn errno() -> c_int {
    // SAFETY: the calling thread's `errno`, an integer that no other thread writes.
    unsafe { *errno_ptr() }
}

/// Installs an action of SIGBUS, as a program would.
fn act(handler: libc::sighandler_t, flags: c_int, masked: &[c_int]) {
    // SAFETY: all fields of the action have valid values; the handlers are the functions below, or SIG_DFL or SIG_IGN.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        masked.iter().for_each(|signal| assert_eq!(libc::sigaddset(&mut action.sa_mask, *signal), 0));
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
    }
}

fn block(signal: c_int) {
    // SAFETY: the set is a whole structure, for which zeroes are valid; no old set is requested.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigaddset(&mut set, signal);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()), 0);
    }
}

extern "C" fn full_handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    assert!(signal == libc::SIGBUS && !context.is_null());
    // SAFETY: the handler is called with the `info` of the signal.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    CODE.store(code, Ordering::Relaxed);
    MASK.store(mask(), Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
    assert!(code <= 0 || foreign().fill(address));
}

extern "C" fn plain_handler(signal: c_int) {
    assert!(signal == libc::SIGBUS && errno() == 77);
    MASK.store(mask(), Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
    assert!(foreign().fill(foreign().at(Hollow::PAGES - 1).addr()));
    set_errno(5);
}

fn full() -> libc::sighandler_t {
    full_handler as *const () as libc::sighandler_t
}

fn calls() -> usize {
    CALLS.load(Ordering::Relaxed)
}

#[test]
fn a_served_access_leaves_errno_and_mask_unchanged() {
    assert_eq!(run("served"), End::Passed);
}

fn served() {
    let hollow = SERVED.get_or_init(Hollow::new);
    install(serve_hollow).unwrap();
    let before = mask();
    set_errno(77);
    assert_eq!(hollow.read(0), 0);
    assert_eq!((errno(), WRITES.load(Ordering::Relaxed)), (77, 0));
    hollow.write(1);
    assert_eq!((errno(), hollow.read(1), mask()), (77, 1, before));
    if cfg!(target_arch = "x86_64") {
        assert_eq!(WRITES.load(Ordering::Relaxed), 1);
    }
    // All signals but those that cannot be blocked, and the two that the C library reserves for itself.
    let seen = MASK.load(Ordering::Relaxed);
    let exempt = [libc::SIGKILL, libc::SIGSTOP, 32, 33];
    (1..=64).filter(|signal| !exempt.contains(signal)).for_each(|s| assert!(seen & bit(s) != 0, "{s}"));
}

#[test]
fn an_access_to_other_memory_calls_the_earlier_handler_with_its_mask() {
    assert_eq!(run("siginfo"), End::Passed);
}

fn siginfo() {
    act(full(), libc::SA_SIGINFO, &[libc::SIGUSR1]);
    install(serve_hollow).unwrap();
    block(libc::SIGUSR2);
    let before = mask();
    assert_eq!(foreign().read(2), 0);
    assert_eq!((calls(), CODE.load(Ordering::Relaxed)), (1, libc::BUS_ADRERR));
    assert_eq!(MASK.load(Ordering::Relaxed), before | bit(libc::SIGUSR1) | bit(libc::SIGBUS));
    assert_eq!(mask(), before);
}

#[test]
fn an_earlier_handler_with_sa_nodefer_is_called_with_sigbus_unblocked() {
    assert_eq!(run("plain"), End::Passed);
}

fn plain() {
    act(plain_handler as *const () as libc::sighandler_t, libc::SA_NODEFER, &[libc::SIGUSR1]);
    install(serve_hollow).unwrap();
    let before = mask();
    set_errno(77);
    foreign().write(Hollow::PAGES - 1);
    assert_eq!((errno(), calls()), (77, 1));
    assert_eq!(MASK.load(Ordering::Relaxed), before | bit(libc::SIGUSR1));
}

#[test]
fn an_earlier_handler_with_sa_resethand_is_called_once() {
    assert_eq!(run("one_shot"), End::KilledBySigbus);
}

fn one_shot() {
    act(full(), libc::SA_SIGINFO | libc::SA_RESETHAND, &[]);
    install(serve_hollow).unwrap();
    foreign().read(0);
    if calls() != 1 {
        return;
    }
    foreign().read(1);
}

#[test]
fn an_access_to_other_memory_without_an_earlier_handler_ends_the_process() {
    assert_eq!(run("default"), End::KilledBySigbus);
    assert_eq!(run("ignored"), End::KilledBySigbus);
}

fn foreign_after(action: libc::sighandler_t) {
    act(action, 0, &[]);
    install(serve_hollow).unwrap();
    foreign().read(0);
}

#[test]
fn an_access_to_other_memory_with_the_standard_librarys_handler_ends_the_process() {
    assert_eq!(run("runtime"), End::KilledBySigbus);
}

fn foreign_after_runtime() {
    install(serve_hollow).unwrap();
    foreign().read(0);
}

/// Returns true for every address.
fn serve_all(_address: usize, _is_write: bool) -> bool {
    true
}

#[test]
fn sent_signals_are_not_served() {
    assert_eq!(run("sent"), End::Passed);
    assert_eq!(run("sent_default"), End::KilledBySigbus);
    assert_eq!(run("sent_ignored"), End::Passed);
}

fn sent() {
    act(full(), libc::SA_SIGINFO, &[]);
    install(serve_all).unwrap();
    // SAFETY: the installed handler runs, and forwards to `full_handler`.
    assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
    assert_eq!((calls(), CODE.load(Ordering::Relaxed)), (1, libc::SI_TKILL));
}

fn sent_after(action: libc::sighandler_t) {
    act(action, 0, &[]);
    install(serve_all).unwrap();
    // SAFETY: the installed handler runs, and then does what `action` says: it ends the process, or nothing.
    assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
}

#[test]
fn interrupted_system_calls_restart_if_the_earlier_handler_has_sa_restart() {
    assert_eq!(run("restart"), End::Passed);
}

fn restart() {
    act(full(), libc::SA_SIGINFO | libc::SA_RESTART, &[]);
    install(serve_all).unwrap();
    let (read_end, write_end) = rustix::pipe::pipe().unwrap();
    let reader = std::thread::spawn(move || {
        let mut byte = [0];
        rustix::io::read(&read_end, &mut byte).map(|n| (n, byte[0]))
    });
    let interrupt = || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        // SAFETY: the thread is not joined yet, so its id is valid; the installed handler forwards to `full_handler`.
        assert_eq!(unsafe { libc::pthread_kill(reader.as_pthread_t(), libc::SIGBUS) }, 0);
    };
    (0..3).for_each(|_| interrupt());
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(calls(), 3);
    rustix::io::write(&write_end, &[9]).unwrap();
    assert_eq!(reader.join().unwrap(), Ok((1, 9)));
}

#[test]
fn a_second_installation_succeeds_for_the_same_function_only() {
    assert_eq!(run("twice"), End::Passed);
}

fn twice() {
    act(full(), libc::SA_SIGINFO, &[]);
    let same: Serve = serve_hollow;
    install(same).unwrap();
    install(same).unwrap();
    assert_eq!(install(serve_all).unwrap_err().errno, libc::EBUSY);
    foreign().read(0);
    assert_eq!(calls(), 1, "forwarded to the earlier handler, not to itself");
}

#[test]
fn a_handler_that_is_installed_later_is_reported_once() {
    assert_eq!(run("later"), End::Passed);
}

fn later() {
    let same: Serve = serve_hollow;
    install(same).unwrap();
    install(same).unwrap();
    act(full(), libc::SA_SIGINFO, &[]);
    let file = rustix::fs::memfd_create("stderr", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    // SAFETY: the descriptors are of this process, which has one test.
    let stderr = unsafe { libc::dup(2) };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 2) }, 2);
    install(same).unwrap();
    install(same).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::dup2(stderr, 2) }, 2);
    let mut text = [0; 1024];
    let len = rustix::io::pread(&file, &mut text, 0).unwrap();
    let text = String::from_utf8_lossy(&text[..len]);
    assert!(text.lines().count() == 1 && text.contains("must call the handler"), "{text}");
}

#[test]
fn threads_that_cannot_serve_faults_are_recognised() {
    let check_in = |stack_bytes: usize, is_blocked: bool| {
        let checked = move || {
            if is_blocked {
                block(libc::SIGBUS);
            }
            thread::check()
        };
        std::thread::Builder::new().stack_size(stack_bytes).spawn(checked).unwrap().join().unwrap()
    };
    assert_eq!(check_in(1 << 20, false), Ok(()));
    assert_eq!(check_in(1 << 20, true), Err(UnfitThread::Blocked));
    let small = check_in(thread::STACK_MIN_BYTES, false);
    assert!(
        matches!(small, Err(UnfitThread::SmallStack { left_bytes }) if left_bytes < 32 << 10),
        "{small:?}"
    );
    assert_eq!(run("alternate"), End::Passed);
}

extern "C" fn check_in_handler(_: c_int) {
    let is_recognised = thread::check() == Err(UnfitThread::AlternateStack);
    CALLS.fetch_add(is_recognised.into(), Ordering::Relaxed);
}

fn alternate() {
    // SAFETY: the stack stays allocated, and the handler uses no more of it.
    unsafe {
        let stack = Box::leak(vec![0u8; 64 << 10].into_boxed_slice());
        let ours = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        assert_eq!(libc::sigaltstack(&ours, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = check_in_handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        assert_eq!(libc::raise(libc::SIGUSR1), 0);
    }
    assert_eq!(calls(), 1);
}

#[test]
fn userfaultfd_faults_are_served_in_the_thread_that_faulted() {
    assert_eq!(run("userfaultfd"), End::Passed);
}

static UFFD: OnceLock<(Uffd, Reservation)> = OnceLock::new();

/// Fills a page with its number.
fn serve_uffd(address: usize, is_write: bool) -> bool {
    WRITES.fetch_add(is_write.into(), Ordering::Relaxed);
    let Some((uffd, range)) = UFFD.get() else { return false };
    let page = address.wrapping_sub(range.base().addr().get()) / PAGE;
    if page >= range.len_bytes() / PAGE {
        return false;
    }
    let contents = [page as u8; PAGE];
    // SAFETY: a missing page of a reservation that only this test uses; the source is a whole page.
    let done = unsafe { uffd.copy(address & !(PAGE - 1), contents.as_ptr(), PAGE, false) };
    // Another thread may have filled the page at the same moment.
    done.errno == 0 || done.errno == libc::EEXIST
}

fn userfaultfd() {
    let open = UffdOptions { sigbus: true, ..UffdOptions::default() };
    let uffd = match Uffd::open(&open) {
        Ok(uffd) => uffd,
        Err(e) => {
            return pagefold_testkit::skipped!(
                "userfaultfd_faults_are_served_in_the_thread_that_faulted: {e}"
            );
        }
    };
    let range = Reservation::new(200 * PAGE).unwrap();
    uffd.register(range.base().addr().get(), range.len_bytes(), true, false).unwrap();
    let (_, range) = UFFD.get_or_init(|| (uffd, range));
    install(serve_uffd).unwrap();
    let byte = |page: usize| {
        // SAFETY: the byte is inside the reservation, and all threads access it atomically.
        unsafe { &*range.base().as_ptr().add(page * PAGE + 7).cast::<std::sync::atomic::AtomicU8>() }
    };
    let read_all = || (0..100).for_each(|page| assert_eq!(byte(page).load(Ordering::Relaxed), page as u8));
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(read_all))));
    assert_eq!(WRITES.load(Ordering::Relaxed), 0);
    (100..200).for_each(|page| assert_eq!(byte(page).fetch_add(1, Ordering::Relaxed), page as u8));
    (100..200).for_each(|page| assert_eq!(byte(page).load(Ordering::Relaxed), page as u8 + 1));
    if cfg!(target_arch = "x86_64") {
        assert_eq!(WRITES.load(Ordering::Relaxed), 100);
    }
}
