//! Databases on a disk whose server is killed while they commit: no error in their logs, their own checks pass, and every
//! transaction is there that was acknowledged.

use crate::support::{Sandbox, have, kill, no_loop, sh, wait_until};
use pagefold_testkit::skipped;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Deaths of the server during a load; with `PAGEFOLD_FULL` as many as in the second number.
const KILLS: [u32; 2] = [3, 20];
/// Transactions that are acknowledged between two deaths, at least.
const COMMITS: u64 = 20;

/// Commits numbers, in order, and prints each when it is committed.
const SQLITE_LOAD: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('pragma journal_mode=' + sys.argv[2])
db.execute('pragma synchronous=full')
db.execute('create table if not exists t (n integer primary key, text text)')
n = 0
while True:
    n += 1
    db.execute('begin')
    db.execute('insert into t values (?, ?)', (n, ('row %d ' % n) * 100))
    db.execute('commit')
    print(n, flush=True)
";

/// A mounted ext4 on a loop disk that outlives its server.
struct Mounted {
    s: Sandbox,
    mount: PathBuf,
}

impl Mounted {
    fn new(test: &str, tools: &[&str]) -> Option<Self> {
        let missing = tools.iter().find(|tool| !have(tool)).map(|tool| format!("needs {tool}"));
        if let Some(why) = no_loop().map(str::to_string).or(missing) {
            skipped!("{test}: {why}");
            return None;
        }
        let s = Sandbox::new();
        let device = s.ok("disk create --size 1G --name x --export loop -m 256M");
        let (device, mount) = (device.trim_end(), s.path("mnt"));
        if let Some(why) = s.show("x")["keeper"]["without_keeper"].as_str() {
            skipped!("{test}: {why}");
            return None;
        }
        std::fs::create_dir(&mount).unwrap();
        sh("mkfs.ext4", &["-q", device]);
        sh("mount", &[device, mount.to_str().unwrap()]);
        Some(Mounted { s, mount })
    }

    /// Kills the server again and again while `load` commits. Returns the last number that it has printed.
    fn kill_servers_under(&self, mut load: Child) -> u64 {
        let last = Arc::new(AtomicU64::new(0));
        let lines = BufReader::new(load.stdout.take().unwrap()).lines();
        let noted = last.clone();
        let reader = std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .filter_map(|line| line.trim().parse().ok())
                .for_each(|n| noted.store(n, SeqCst));
        });
        let kills = KILLS[usize::from(std::env::var_os("PAGEFOLD_FULL").is_some())];
        for _ in 0..kills {
            let before = last.load(SeqCst);
            wait_until("transactions are committed", || {
                assert!(load.try_wait().unwrap().is_none(), "the load has ended after transaction {before}");
                last.load(SeqCst) >= before + COMMITS
            });
            self.kill_server();
        }
        std::thread::sleep(Duration::from_millis(200));
        load.kill().unwrap();
        load.wait().unwrap();
        reader.join().unwrap();
        last.load(SeqCst)
    }

    /// Kills the server, and waits for the next one.
    fn kill_server(&self) {
        let pid = self.s.server_pid("x");
        kill(pid, "KILL");
        wait_until("another server serves", || {
            let out = self.s.run("disk show --json x");
            if out.code != 0 && out.err.contains("disk restart") {
                self.s.ok("disk restart x");
            }
            out.code == 0 && self.s.server_pid("x") != pid
        });
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mount).status();
        let _ = self.s.run("disk remove --force x");
    }
}

#[test]
fn sqlite_loses_no_transaction_when_the_server_is_killed() {
    let test = "sqlite_loses_no_transaction_when_the_server_is_killed";
    let Some(disk) = Mounted::new(test, &["mkfs.ext4", "mount", "python3", "sqlite3"]) else { return };
    for journal in ["wal", "delete"] {
        let file = disk.mount.join(journal);
        let load = Command::new("python3")
            .args(["-c", SQLITE_LOAD, file.to_str().unwrap(), journal])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let last = disk.kill_servers_under(load);
        let query = "pragma integrity_check; select count(*) = max(n), max(n) from t;";
        let answer = output("sqlite3", &[file.to_str().unwrap(), query]);
        let (check, counts) = answer.trim().split_once('\n').unwrap();
        assert_eq!(check, "ok");
        let (is_whole, committed) = counts.split_once('|').unwrap();
        assert_eq!(is_whole, "1");
        assert!(committed.parse::<u64>().unwrap() >= last, "{committed} of {last} transactions");
    }
}

/// A PostgreSQL server with its data in a directory, which is stopped on drop.
struct Postgres {
    data: PathBuf,
    bin: String,
}

impl Postgres {
    /// Runs a program of PostgreSQL as its user: it refuses root.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(format!("{}{program}", self.bin)).current_dir("/");
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        let out = self.command(program).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{program}: {said}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn start(mount: &Path) -> Self {
        let data = mount.join("postgres");
        std::fs::create_dir(&data).unwrap();
        sh("chown", &["postgres", data.to_str().unwrap()]);
        // The parents belong to the test.
        mount.ancestors().for_each(|dir| _ = Command::new("chmod").arg("a+x").arg(dir).status());
        let bin = match Path::new("/usr/lib/postgresql").read_dir() {
            Ok(mut versions) => format!("{}/bin/", versions.next().unwrap().unwrap().path().display()),
            Err(_) => String::new(),
        };
        let server = Postgres { data, bin };
        let data = server.data.to_str().unwrap().to_string();
        server.run("initdb", &["-D", &data, "--no-locale", "-A", "trust", "--data-checksums"]);
        let options = format!("-c listen_addresses= -c unix_socket_directories={data} -c shared_buffers=4MB");
        let log = server.data.join("log");
        let started = server
            .command("pg_ctl")
            .args(["-D", &data, "-w", "-l", log.to_str().unwrap(), "-o", &options, "start"])
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(started.success());
        server
    }

    fn psql(&self, sql: &str) -> String {
        let data = self.data.to_str().unwrap();
        self.run("psql", &["-h", data, "-d", "postgres", "-At", "-v", "ON_ERROR_STOP=1", "-c", sql])
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self
            .command("pg_ctl")
            .args(["-D", self.data.to_str().unwrap(), "-m", "fast", "-w", "stop"])
            .stdout(Stdio::null())
            .status();
    }
}

#[test]
fn postgresql_loses_no_transaction_when_the_server_is_killed() {
    let test = "postgresql_loses_no_transaction_when_the_server_is_killed";
    let Some(disk) = Mounted::new(test, &["mkfs.ext4", "mount", "postgres", "psql", "setpriv"]) else {
        return;
    };
    let server = Postgres::start(&disk.mount);
    server.psql("create table t (n bigint primary key, text text)");
    // Each statement of a script is a transaction, and its answer comes when it is committed.
    let statements: String = (1..200_000)
        .map(|n| format!("insert into t values ({n}, repeat(md5('{n}'), 30)) returning n;\n"))
        .collect();
    let script = disk.s.path("load.sql");
    std::fs::write(&script, statements).unwrap();
    sh("chmod", &["a+rx", disk.s.path("").to_str().unwrap(), script.to_str().unwrap()]);
    let load = server
        .command("psql")
        .args(["-h", server.data.to_str().unwrap(), "-d", "postgres", "-Atq", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(&script)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let last = disk.kill_servers_under(load);
    let counts = server.psql("select count(*) = max(n), max(n) from t");
    let (is_whole, committed) = counts.trim().split_once('|').unwrap();
    assert_eq!(is_whole, "t");
    assert!(committed.parse::<u64>().unwrap() >= last, "{committed} of {last} transactions");
    server.psql("create extension amcheck");
    server.psql("select bt_index_check('t_pkey', true)");
    let log = std::fs::read_to_string(server.data.join("log")).unwrap();
    // The load was killed: a connection to a client is lost.
    for bad in ["PANIC", "ERROR", "could not read", "could not write", "could not fsync", "Input/output"] {
        assert!(!log.contains(bad), "{log}");
    }
}

fn output(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}
