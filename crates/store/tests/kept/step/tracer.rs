//! Runs a process from one change of its shared memory to the next.
//!
//! The memory is mapped read-only in the process while it runs, so that each instruction that stores to it stops the
//! process (SIGSEGV). The tracer then makes the memory writable, lets that instruction run (`PTRACE_SINGLESTEP`), and
//! makes the memory read-only again. System calls run with writable memory. The process notices nothing: the calls of
//! `mprotect` are made by setting its registers.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// The number of the system call with which a process ends the part that is traced. The kernel has none of this number.
pub const END: i64 = 100_000;

/// The place where the process stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// After an instruction that stored to the memory.
    Store {
        /// The address of the instruction.
        at: u64,
    },
    /// After a system call.
    Call {
        /// Its number.
        number: u64,
    },
    /// At the end of the part; the process is not traced any more.
    End,
}

/// A traced thread, which is stopped whenever the tracer's functions do not run.
pub struct Tracer {
    tid: i32,
    /// The inode of the memory.
    inode: u64,
    /// All mappings of the process, as the kernel lists them.
    maps: String,
    /// The ranges of addresses at which the memory is mapped.
    mapped: Vec<Range<u64>>,
    /// The address of an instruction that makes a system call.
    call_at: u64,
}

/// Asks to be traced by the parent, and stops. Called by the process that is to be traced.
pub fn stop_to_be_traced() {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the request takes no addresses.
    let asked = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, none, none) };
    assert_eq!(asked, 0, "{}", io::Error::last_os_error());
    // SAFETY: the signal stops this thread, and the tracer does not deliver it.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Ends the part that is traced.
pub fn end_of_traced() {
    // SAFETY: the kernel has no such call.
    unsafe { libc::syscall(END) };
}

impl Tracer {
    /// Traces thread `tid` of a child, which calls [`stop_to_be_traced`]. `memory` is a descriptor of the memory.
    pub fn start(tid: i32, memory: &impl AsRawFd) -> Self {
        // The descriptor's file in /proc leads to the inode.
        let inode = fs::metadata(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap().ino();
        let mut tracer = Tracer { tid, inode, maps: String::new(), mapped: Vec::new(), call_at: 0 };
        let signal = loop {
            match tracer.try_wait() {
                Ok(signal) => break signal,
                // It has not asked to be traced yet.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(signal, libc::SIGSTOP);
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        tracer.request(libc::PTRACE_SETOPTIONS, options as usize);
        // The thread is behind the system call that raised the signal.
        tracer.call_at = tracer.registers().rip - 2;
        let code = tracer.request(libc::PTRACE_PEEKTEXT, 0);
        assert_eq!(code as u16, 0x050f, "no instruction of a system call");
        tracer.find_mappings();
        tracer.protect(libc::PROT_READ);
        tracer
    }

    /// Lets the process run to the next change of its memory.
    pub fn next(&mut self) -> Stop {
        self.resume(libc::PTRACE_SYSCALL);
        let signal = self.wait();
        if signal == libc::SIGTRAP | 0x80 {
            return self.step_over_call();
        }
        assert_eq!(signal, libc::SIGSEGV, "another signal at {:#x}", self.registers().rip);
        let at = self.registers().rip;
        let address = self.fault_address();
        assert!(self.mapped.iter().any(|range| range.contains(&address)), "{at:#x} accessed {address:#x}");
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
        self.resume(libc::PTRACE_SINGLESTEP);
        assert_eq!(self.wait(), libc::SIGTRAP);
        self.protect(libc::PROT_READ);
        Stop::Store { at }
    }

    /// Makes the memory writable for the other threads of the process. The thread does not go on.
    pub fn release_memory(&self) {
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
    }

    /// Waits for the end of the thread, whose process was killed.
    pub fn reap(self) {
        let mut status = 0;
        loop {
            // SAFETY: the status is an integer of this function.
            let waited = unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL) };
            if waited != self.tid || !libc::WIFSTOPPED(status) {
                return;
            }
        }
    }

    /// Runs a system call, at whose entry the process stands, with writable memory.
    fn step_over_call(&mut self) -> Stop {
        let entered = self.registers();
        let number = entered.orig_rax;
        // Cancelled: no other call can be made at the entry of one.
        self.set_registers(&libc::user_regs_struct { orig_rax: u64::MAX, ..entered });
        self.finish_call();
        if number as i64 == END {
            self.protect(libc::PROT_READ | libc::PROT_WRITE);
            self.request(libc::PTRACE_DETACH, 0);
            return Stop::End;
        }
        self.set_registers(&libc::user_regs_struct {
            orig_rax: u64::MAX,
            rax: number,
            rip: entered.rip - 2,
            ..entered
        });
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
        self.finish_call();
        self.finish_call();
        // The call may have mapped memory.
        self.find_mappings();
        self.protect(libc::PROT_READ);
        Stop::Call { number }
    }

    /// Runs from the entry of a system call to its exit, or to the entry of the next one.
    fn finish_call(&self) {
        self.resume(libc::PTRACE_SYSCALL);
        assert_eq!(self.wait(), libc::SIGTRAP | 0x80);
    }

    /// The file and the offset of an address of code, for messages.
    pub fn describe(&self, address: u64) -> String {
        let found = self.maps.lines().find_map(|line| {
            let (range, fields) = parse_mapping(line)?;
            range.contains(&address).then(|| {
                let offset = u64::from_str_radix(fields[2], 16).unwrap_or(0);
                format!("{}+{:#x}", fields.last().unwrap_or(&""), address - range.start + offset)
            })
        });
        found.unwrap_or_default()
    }

    fn find_mappings(&mut self) {
        self.maps = fs::read_to_string(format!("/proc/{}/maps", self.tid)).unwrap();
        let mapped = self.maps.lines().filter_map(parse_mapping);
        let inode = self.inode.to_string();
        self.mapped = mapped.filter(|(_, fields)| fields[4] == inode).map(|(range, _)| range).collect();
    }

    /// Makes the process change the protection of all its mappings of the memory.
    fn protect(&self, protection: i32) {
        for range in &self.mapped {
            let arguments = [range.start, range.end - range.start, protection as u64];
            assert_eq!(self.call(libc::SYS_mprotect as u64, arguments), 0);
        }
    }

    /// Makes the process run a system call, and returns its result.
    fn call(&self, number: u64, [rdi, rsi, rdx]: [u64; 3]) -> i64 {
        let before = self.registers();
        let orig_rax = u64::MAX;
        let call =
            libc::user_regs_struct { rip: self.call_at, rax: number, orig_rax, rdi, rsi, rdx, ..before };
        self.set_registers(&call);
        self.resume(libc::PTRACE_SINGLESTEP);
        assert_eq!(self.wait(), libc::SIGTRAP);
        let result = self.registers().rax;
        self.set_registers(&libc::user_regs_struct { orig_rax, ..before });
        result as i64
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: a structure of numbers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETREGS, (&raw mut registers).expose_provenance());
        registers
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) {
        self.request(libc::PTRACE_SETREGS, std::ptr::from_ref(registers).expose_provenance());
    }

    /// The address whose access caused the signal at which the process stands.
    fn fault_address(&self) -> u64 {
        // SAFETY: a structure of numbers and addresses, for which zeroes are valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETSIGINFO, (&raw mut info).expose_provenance());
        // SAFETY: the signal is SIGSEGV, which has an address.
        unsafe { info.si_addr() }.addr() as u64
    }

    fn resume(&self, how: libc::c_uint) {
        self.request(how, 0);
    }

    /// A request to the kernel, with its last argument. All requests here succeed for a stopped thread.
    fn request(&self, request: libc::c_uint, data: usize) -> i64 {
        let address = if request == libc::PTRACE_PEEKTEXT { self.call_at as usize } else { 0 };
        // SAFETY: `data` is a number, or the address of a structure of the type that the request reads or writes.
        let result = unsafe { libc::ptrace(request, self.tid, address, data) };
        assert!(result != -1, "request {request}: {}", io::Error::last_os_error());
        result
    }

    /// Waits until the thread stops, and returns the signal of the stop.
    fn wait(&self) -> i32 {
        self.try_wait().unwrap()
    }

    fn try_wait(&self) -> io::Result<i32> {
        let mut status = 0;
        // SAFETY: the status is an integer of this function.
        let waited = unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL) };
        if waited != self.tid {
            return Err(io::Error::last_os_error());
        }
        assert!(libc::WIFSTOPPED(status), "the process ended: {status:#x}");
        Ok(libc::WSTOPSIG(status))
    }
}

/// The range and the fields of a line of `/proc/PID/maps`.
fn parse_mapping(line: &str) -> Option<(Range<u64>, Vec<&str>)> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let (start, end) = fields.first()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(start)?..number(end)?, fields))
}
