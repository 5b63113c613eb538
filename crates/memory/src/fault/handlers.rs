//! The threads that serve faults of a region, those of system calls too.
//!
//! Each thread reads a few messages of the userfaultfd at once, serves them, and polls if there are none. The kernel blocks
//! the thread that made a fault until its page is put into the range, or until it is woken to try again.
//!
//! A fault wakes all threads that poll. The first of them reads the message, and the others find none. If there is a thread
//! for each CPU, each stays on its own: then one of them runs on the CPU of the fault as soon as the faulting thread blocks.
//! A thread on another CPU takes longer, because that CPU must be woken by an interrupt, and the faulting thread must be
//! woken by another one afterwards.
//!
//! Then the threads on the other CPUs are woken for nothing. So that they do not interrupt a thread of the program that
//! runs there, threads that stay on their CPU preempt no others when they wake up. The one on the CPU of the fault need
//! not: the faulting thread blocks.

use crate::error::RegionError;
use crate::pager::{OnLoss, Pager};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::uffd::Fault;
use pagefold_sys::{SysError, cpu, signal};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Messages read at once.
const FAULTS_MAX: usize = 16;

/// The threads. Dropping this ends them and waits for them.
pub(crate) struct Handlers {
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Handlers {
    /// Starts `count` threads.
    pub(crate) fn start(pager: &Arc<Pager>, count: usize) -> Result<Self, RegionError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|e| SysError::new("making a descriptor that ends threads", e.raw_os_error()))?;
        let stop = Arc::new(stop);
        let mut handlers = Handlers { stop, threads: Vec::new() };
        for own in placement(count.max(1), &cpu::allowed()) {
            let (pager, stop) = (pager.clone(), handlers.stop.clone());
            let thread = std::thread::Builder::new().name("pagefold-fault".into());
            let serve = move || {
                if let Some(own) = own {
                    // If the kernel refuses, the thread serves faults all the same.
                    let _ = cpu::pin(own) && cpu::wake_without_preempting();
                }
                run(&pager, &stop);
            };
            handlers.threads.push(signal::spawn_masked(thread, serve).map_err(RegionError::Thread)?);
        }
        Ok(handlers)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        // The counter cannot be full: this is the only write to it.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            // A panic in it has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Returns the CPU of each of `count` threads, out of those that they may use. With fewer threads than CPUs each may
/// run on any: else faults on the other CPUs would wait for busy ones.
fn placement(count: usize, cpus: &[usize]) -> Vec<Option<usize>> {
    let is_placed = !cpus.is_empty() && count >= cpus.len();
    (0..count).map(|i| is_placed.then(|| cpus[i % cpus.len()])).collect()
}

fn run(pager: &Pager, stop: &OwnedFd) {
    let mut faults = [Fault::default(); FAULTS_MAX];
    loop {
        // A thread that was served often interrupts this one, and has faulted again by now: then polling is not needed.
        while let Ok(count @ 1..) = pager.uffd.read_faults(&mut faults) {
            faults[..count].iter().for_each(|fault| serve(pager, fault));
            // Accesses that get no memory any more fault again and again: the messages may not end before `stop`. Until
            // then evictors may still need their faults served.
            if pager.budget.is_closing() {
                break;
            }
        }
        let descriptor = pager.uffd.as_fd();
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut polled, None).is_err() {
            continue;
        }
        if !polled[1].revents().is_empty() {
            return;
        }
    }
}

fn serve(pager: &Pager, fault: &Fault) {
    match pager.offset_of(fault.address) {
        Some(offset) => {
            // The kernel blocks the thread that made the access: only poison makes the access fail.
            pager.serve(offset, fault.is_write, OnLoss::Poison);
        }
        None => {
            pager.serve_staging(fault.address);
            let _ = pager.uffd.wake(fault.address / PAGE_SIZE * PAGE_SIZE, PAGE_SIZE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::placement;

    #[test]
    fn each_cpu_has_a_thread_or_no_thread_has_a_cpu() {
        assert_eq!(placement(2, &[0, 5]), [Some(0), Some(5)]);
        assert_eq!(placement(3, &[0, 5]), [Some(0), Some(5), Some(0)]);
        assert_eq!(placement(2, &[0, 1, 2]), [None, None]);
        assert_eq!(placement(1, &[]), [None]);
    }
}
