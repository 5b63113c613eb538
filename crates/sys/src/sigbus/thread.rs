//! Whether the calling thread can serve its own faults, as far as that can be seen before the first one.
//!
//! The kernel ends a process without a line if a fault raises SIGBUS while it is blocked, and the handler overwrites what
//! lies below a stack that is too small for it. Reference: pthread_getattr_np(3), sigaltstack(2), proc_pid_maps(5).

use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Least bytes below the stack pointer. The kernel's signal frame takes 3 KiB with AVX-512 state and 11 KiB with AMX, and
/// the handler calls a codec.
pub const STACK_MIN_BYTES: usize = 32 << 10;

/// Why a thread cannot serve its own faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnfitThread {
    /// SIGBUS is blocked.
    #[error(
        "this thread blocks SIGBUS, by which the kernel reports accesses to the region: it would end the program. Unblock \
         SIGBUS (pthread_sigmask) in this and all other threads that use the region, or choose handler threads"
    )]
    Blocked,
    /// The thread is in a signal handler with SA_ONSTACK.
    #[error(
        "this thread runs on its alternate signal stack, which is too small to serve faults: choose handler threads"
    )]
    AlternateStack,
    /// The stack is nearly used up, or small from the start.
    #[error(
        "this thread has {left_bytes} bytes of stack left, and serving faults takes up to {STACK_MIN_BYTES}: use a larger \
         stack in all threads that use the region, or choose handler threads"
    )]
    SmallStack {
        /// Bytes below the stack pointer.
        left_bytes: usize,
    },
    /// The program is written in Go.
    #[error("the stacks of goroutines are too small to serve faults of a region: choose handler threads")]
    Go,
}

/// Fails if the calling thread, or probably another of its program, cannot serve faults in the handler of SIGBUS.
pub fn check() -> Result<(), UnfitThread> {
    if is_blocked(libc::SIGBUS) {
        return Err(UnfitThread::Blocked);
    }
    if is_go_program() {
        return Err(UnfitThread::Go);
    }
    if is_on_alternate_stack() {
        return Err(UnfitThread::AlternateStack);
    }
    match stack_left() {
        Some(left_bytes) if left_bytes < STACK_MIN_BYTES => Err(UnfitThread::SmallStack { left_bytes }),
        _ => Ok(()),
    }
}

fn is_blocked(signal: i32) -> bool {
    let mut now = MaybeUninit::uninit();
    // SAFETY: with no set to apply, the call only writes the mask of the calling thread, all of it.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr()) == 0
            && libc::sigismember(now.as_ptr(), signal) == 1
    }
}

/// Whether the main program is written in Go. A goroutine begins with a stack of 2 KiB, and a fault of its is
/// served there: only calls of C get a larger one. Libraries in Go do not count, as the region is probably not for them.
fn is_go_program() -> bool {
    // By this function, C calls back. A program that uses cgo exports it.
    // SAFETY: the name is a string.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"crosscall2".as_ptr()) };
    // SAFETY: the call reads a table of the process.
    let entry = unsafe { libc::getauxval(libc::AT_ENTRY) } as usize;
    !function.is_null() && object_of(function) == object_of(std::ptr::without_provenance(entry))
}

/// Returns where the program or library is mapped that has an address.
fn object_of(address: *const c_void) -> Option<usize> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the call takes any address, and fills in the structure if it does not return 0.
    unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init().dli_fbase.addr()) }
}

fn is_on_alternate_stack() -> bool {
    let mut now = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: with no stack to set, the call only fills in the structure.
    unsafe {
        libc::sigaltstack(std::ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().ss_flags & libc::SS_ONSTACK != 0
    }
}

/// Returns the bytes below the stack pointer, if that is known. On a stack that the C library does not know, as of a
/// coroutine, those of the mapping: the stack has no more.
fn stack_left() -> Option<usize> {
    let marker = 0u8;
    let here = (&raw const marker).addr();
    let left = |start: usize, end: usize| (start..end).contains(&here).then(|| here - start);
    let (start, len_bytes) = thread_stack()?;
    left(start, start.saturating_add(len_bytes)).or_else(|| {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        maps.lines().find_map(|line| {
            let (start, rest) = line.split_once('-')?;
            let end = rest.split(' ').next()?;
            left(usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?)
        })
    })
}

/// Returns the lowest address and the size of the stack that the calling thread was made with.
fn thread_stack() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::uninit();
    let (mut start, mut len_bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call fills in the attributes if it returns 0, and only then the others read and release them; the
    // second writes to two variables.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let result = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut len_bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (result == 0).then(|| (start.addr(), len_bytes))
    }
}
