//! Reading this process's memory without faulting.
//!
//! A plain access to a missing page in memory that is served by userfaultfd (see [`uffd`](crate::uffd)) waits until a
//! thread fills the page. Threads on which that serving thread depends must not wait. Two kernel interfaces return an
//! error instead. process_vm_readv(2) does so if the faults become SIGBUS, as all system calls do then; it is the
//! faster one. Reads of the file `/proc/self/mem` never wait for a userfaultfd context, however it was opened.
//!
//! Reference: process_vm_readv(2), proc_pid_mem(5); in the kernel, `handle_userfault`, which refuses accesses that
//! cannot be tried again.

use crate::{Errno, SysError};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A reader of this process's memory by address. Do not use it in a forked child, where it may read the parent's
/// memory.
#[derive(Debug)]
pub struct OwnMemory(Method);

#[derive(Debug)]
enum Method {
    /// process_vm_readv(2).
    Call,
    /// `/proc/self/mem`.
    File(File),
}

impl OwnMemory {
    /// Makes a reader that never waits for a page. `is_sigbus` promises that the faults of all userfaultfd memory that
    /// it reads become SIGBUS.
    ///
    /// Without that promise, or if process_vm_readv(2) is not allowed, the reader needs a mounted `/proc`, and a
    /// process that is dumpable or privileged.
    pub fn open(is_sigbus: bool) -> Result<Self, SysError> {
        let (probed, mut read) = ([7_u8; 8], [0; 8]);
        if is_sigbus && read_by_call(probed.as_ptr().addr(), &mut read).is_ok() && read == probed {
            return Ok(OwnMemory(Method::Call));
        }
        const PATH: &str = "/proc/self/mem";
        let file = File::open(PATH).map_err(|e| SysError::io(format!("opening {PATH}"), &e))?;
        Ok(OwnMemory(Method::File(file)))
    }

    /// Fills `to` with the bytes at an address. Fails with EFAULT if no memory is mapped there, or a page is missing
    /// whose faults userfaultfd serves.
    pub fn read(&self, address: usize, to: &mut [u8]) -> Result<(), Errno> {
        match &self.0 {
            Method::Call => read_by_call(address, to),
            // A short read, or EIO, means that a page is missing.
            Method::File(file) => {
                file.read_exact_at(to, address as u64).map_err(|e| match e.raw_os_error() {
                    None | Some(libc::EIO) => Errno(libc::EFAULT),
                    Some(errno) => Errno(errno),
                })
            }
        }
    }
}

fn read_by_call(address: usize, to: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: to.len() };
    // SAFETY: the kernel writes only to `to`, within its length, and checks the address that it reads from.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match read {
        -1 => Err(Errno::last()),
        // A short read means that a page is missing.
        read if (read as usize) < to.len() => Err(Errno(libc::EFAULT)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Reservation, page_size};
    use crate::uffd::{Uffd, UffdOptions, kernel_features};

    #[test]
    fn mapped_memory_is_read_and_unmapped_memory_is_an_error() {
        for is_sigbus in [false, true] {
            let memory = OwnMemory::open(is_sigbus).unwrap();
            let bytes: Vec<u8> = (0..100).collect();
            let mut read = [0; 100];
            memory.read(bytes.as_ptr().addr(), &mut read).unwrap();
            assert_eq!(read[..], bytes);
            assert_eq!(memory.read(0, &mut read), Err(Errno(libc::EFAULT)));
        }
    }

    #[test]
    fn a_missing_page_is_an_error_and_not_a_wait() {
        for is_sigbus in [false, true] {
            let open = UffdOptions { sigbus: is_sigbus, kernel_faults: !is_sigbus, ..UffdOptions::default() };
            let uffd = match kernel_features().and_then(|_| Uffd::open(&open)) {
                Ok(uffd) => uffd,
                Err(e) => {
                    pagefold_testkit::skipped!("a_missing_page_is_an_error_and_not_a_wait: {e}");
                    continue;
                }
            };
            let page = page_size();
            let range = Reservation::new(2 * page).unwrap();
            // SAFETY: the first byte of the range, which only this test uses and which is not registered yet.
            unsafe { range.base().as_ptr().write(7) };
            let start = range.base().as_ptr().addr();
            uffd.register(start, 2 * page, true, true).unwrap();
            let (memory, mut read) = (OwnMemory::open(is_sigbus).unwrap(), vec![0; page]);
            memory.read(start, &mut read).unwrap();
            assert_eq!(read[0], 7);
            assert_eq!(memory.read(start + page, &mut read), Err(Errno(libc::EFAULT)));
            assert_eq!(memory.read(start, &mut vec![0; 2 * page]), Err(Errno(libc::EFAULT)));
        }
    }
}
