use super::*;
use std::io::Read;
use std::os::unix::net::UnixListener;

fn instance() -> (tempfile::TempDir, InstanceDir) {
    let folder = tempfile::tempdir().unwrap();
    let dir = InstanceDir::at(folder.path().join("x")).unwrap();
    dir.create().unwrap();
    (folder, dir)
}

/// Whether a server that sends `bytes` after the request counts as one that answers.
fn answers(bytes: &'static [u8]) -> bool {
    let (_folder, dir) = instance();
    let listener = UnixListener::bind(dir.control_path()).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(bytes).unwrap();
    });
    let answers = Client::answers(&dir).unwrap();
    server.join().unwrap();
    answers
}

#[test]
fn any_line_and_a_closed_connection_are_answers() {
    assert!(answers(b"this is no report\n"));
    assert!(answers(b"\"done\"\n"));
    assert!(answers(b""));
}

#[test]
fn silence_is_no_answer() {
    let (_folder, dir) = instance();
    let _listener = UnixListener::bind(dir.control_path()).unwrap();
    let client = Client::open(&dir).unwrap();
    assert!(!client.sends_a_line(Duration::from_millis(50)).unwrap());
}

#[test]
fn a_response_that_drips_is_none() {
    let (_folder, dir) = instance();
    let listener = UnixListener::bind(dir.control_path()).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            // Ends, so that a client that waits for the line fails the test.
            let _ = (0..1000).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(10));
                stream.write_all(b" ")
            });
            let _ = stream.write_all(b"\"done\"\n");
        }
    });
    assert!(!Client::open(&dir).unwrap().sends_a_line(Duration::from_millis(200)).unwrap());
    let mut client = Client::open(&dir).unwrap();
    let e = client.request(&Request::Remove { force: true }, Duration::from_millis(200)).unwrap_err();
    assert!(e.exit == Exit::Failed && e.to_string().contains("no response within"), "{e}");
    drop(client);
    server.join().unwrap();
}

#[test]
fn a_failure_to_connect_is_not_taken_for_silence() {
    let (_folder, dir) = instance();
    std::os::unix::fs::symlink("control.sock", dir.control_path()).unwrap();
    assert_eq!(Client::answers(&dir).unwrap_err().exit, Exit::Failed);
}
