//! Reading this process's memory without faulting.
//!
//! A plain access to memory whose faults are served (see [`uffd`](crate::uffd)) waits until somebody fills the page.
//! Some threads must not wait for that: those that the server itself waits for. The kernel's file of a process's memory
//! answers with an error instead: its reads never wait for a userfaultfd context, whatever that was opened for.
//!
//! [`copy_shared`] is for the other case: the page can be filled meanwhile, but by a thread that then also writes
//! to it.
//!
//! Reference: proc_pid_mem(5); in the kernel, `handle_userfault`, which refuses accesses that cannot be tried again.

use crate::{Errno, SysError};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The memory of this process, read by address. Useless in a forked child: it reads the parent's.
#[derive(Debug)]
pub struct OwnMemory(File);

impl OwnMemory {
    /// Opens it. Takes a mounted `/proc`, and a process that is dumpable or privileged.
    pub fn open() -> Result<Self, SysError> {
        const PATH: &str = "/proc/self/mem";
        let file = File::open(PATH).map_err(|e| SysError::io(format!("opening {PATH}"), &e))?;
        Ok(OwnMemory(file))
    }

    /// Fills `to` with the bytes at an address. EIO if there is nothing mapped, or a page is missing whose faults a
    /// userfaultfd context serves: it is not waited for.
    pub fn read(&self, address: usize, to: &mut [u8]) -> Result<(), Errno> {
        let read = self.0.read_exact_at(to, address as u64);
        // A read that ends early ended at a page that is not there.
        read.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))
    }
}

/// Copies whole words that other threads may be writing; words written meanwhile arrive old, new, or torn.
///
/// # Safety
/// `from` is aligned to a word, and as many bytes as `to` has can be read there.
#[inline]
pub unsafe fn copy_shared(from: *const u64, to: &mut [u8]) {
    assert!(to.len().is_multiple_of(size_of::<u64>()));
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads as many words as `to` has, from where the caller says that they can be read, and writes them to
    // `to`. The compiler does not see which memory is read, so it draws no conclusion from what others write there.
    // The direction flag is clear, as the calling convention says. An access that faults goes on where it was.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") to.len() / size_of::<u64>() => _,
            inout("rsi") from => _,
            inout("rdi") to.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for (at, word) in to.chunks_exact_mut(size_of::<u64>()).enumerate() {
        // SAFETY: the caller says that so many words can be read from `from`, which is aligned. Volatile, as others may
        // be writing: the compiler reads each word once and concludes nothing from it.
        let read = unsafe { from.add(at).read_volatile() };
        word.copy_from_slice(&read.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Reservation, page_size};
    use crate::uffd::{Open, Uffd, kernel_features};

    #[test]
    fn what_is_there_is_read_and_what_is_not_is_an_error() {
        let memory = OwnMemory::open().unwrap();
        let bytes: Vec<u8> = (0..100).collect();
        let mut read = [0; 100];
        memory.read(bytes.as_ptr().addr(), &mut read).unwrap();
        assert_eq!(read[..], bytes);
        assert_eq!(memory.read(0, &mut read), Err(Errno(libc::EIO)));
    }

    #[test]
    fn a_missing_page_is_an_error_though_nobody_fills_it() {
        for sigbus in [false, true] {
            let open = Open { sigbus, async_wp: false, kernel_faults: false };
            let uffd = match kernel_features().and_then(|_| Uffd::open(&open)) {
                Ok(uffd) => uffd,
                Err(e) => {
                    pagefold_testkit::skipped!("a_missing_page_is_an_error_though_nobody_fills_it: {e}");
                    return;
                }
            };
            let page = page_size();
            let range = Reservation::new(2 * page).unwrap();
            // SAFETY: the first byte of the range, which nobody serves yet.
            unsafe { range.base().as_ptr().write(7) };
            let start = range.base().as_ptr().addr();
            uffd.register(start, 2 * page, true, true).unwrap();
            let (memory, mut read) = (OwnMemory::open().unwrap(), vec![0; page]);
            memory.read(start, &mut read).unwrap();
            assert_eq!(read[0], 7);
            assert_eq!(memory.read(start + page, &mut read), Err(Errno(libc::EIO)));
            assert_eq!(memory.read(start, &mut vec![0; 2 * page]), Err(Errno(libc::EIO)));
        }
    }

    #[test]
    fn words_are_copied_as_they_are() {
        for len in [0, 1, 2, 63, 512] {
            let from: Vec<u64> = (1..=len).map(|i| i * 0x0102_0304_0506_0708).collect();
            let mut to = vec![0; len as usize * 8 + 1];
            let (words, rest) = to.split_at_mut(len as usize * 8);
            // SAFETY: as many words as are copied.
            unsafe { copy_shared(from.as_ptr(), words) };
            assert!(words.chunks(8).zip(&from).all(|(bytes, word)| bytes == word.to_ne_bytes()));
            assert_eq!(rest, [0]);
        }
    }
}
