//! The registry of Docker's distribution, from Debian's package: tags, digests, an index, and users with passwords.

use crate::registry::{EROFS, IMAGE, INDEX, descriptor, digest, image, index};
use crate::{LEN, contents, options, read};
use pagefold_remote::Secret;
use pagefold_remote::oci::{self, ImageUpload, Login, OciReference, Platform, Upload};
use pagefold_testkit::skipped;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A running registry.
struct DockerRegistry {
    child: Child,
    address: String,
    authorization: Option<&'static str>,
    _folder: tempfile::TempDir,
}

/// The program; the error says why there is none. One test installs it for all.
fn program() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || {
        crate::guest::install("docker-registry.sh").map(|at| PathBuf::from(at).join("bin/docker-registry"))
    };
    PROGRAM.get_or_init(install).clone()
}

impl DockerRegistry {
    /// Starts it; with a user `me` whose password is `secret`, if wanted.
    fn start(program: &Path, with_user: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The port is free until somebody else takes it, which nobody does between these lines.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\nhttp:\n  addr: {address}\n",
            folder.path().join("blobs").display()
        );
        if with_user {
            // bcrypt of "secret".
            let users = folder.path().join("users");
            std::fs::write(&users, "me:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n")
                .unwrap();
            config += &format!("auth:\n  htpasswd: {{realm: test, path: {}}}\n", users.display());
        }
        let path = folder.path().join("config.yml");
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new(program);
        command.arg("serve").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let start = Instant::now();
        while TcpStream::connect(&address).is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "the registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        let authorization = with_user.then_some("Authorization: Basic bWU6c2VjcmV0\r\n");
        DockerRegistry { child, address, authorization, _folder: folder }
    }

    /// Sends a request, and returns the status and the header `Location`.
    fn send(&self, method: &str, path: &str, media_type: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {media_type}\r\n\
             Content-Length: {}\r\n{}\r\n",
            self.address,
            body.len(),
            self.authorization.unwrap_or_default()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let location = answer.lines().find_map(|line| line.strip_prefix("Location: "));
        (answer[9..12].parse().unwrap(), location.unwrap_or_default().trim().to_string())
    }

    fn push_blob(&self, bytes: &[u8]) {
        let (status, location) = self.send("POST", "/v2/me/app/blobs/uploads/", "text/plain", b"");
        assert_eq!(status, 202);
        let path = &location[location.find("/v2/").unwrap()..];
        let path = format!("{path}&digest={}", digest(bytes));
        assert_eq!(self.send("PUT", &path, "application/octet-stream", bytes).0, 201);
    }

    fn push_manifest(&self, target: &str, media_type: &str, text: &str) {
        let path = format!("/v2/me/app/manifests/{target}");
        assert_eq!(self.send("PUT", &path, media_type, text.as_bytes()).0, 201, "{target}");
    }

    /// Reads the whole image.
    fn read(&self, target: &str, login: Option<&Login>) -> Result<(), String> {
        let reference = OciReference::parse(&format!("oci://{}/me/app{target}", self.address)).unwrap();
        let platform: Platform = "linux/amd64".parse().unwrap();
        let image = oci::resolve(&reference, login, &platform, Duration::from_secs(10));
        let source = image.and_then(|image| image.open(&options(10_000))).map_err(|e| e.to_string())?;
        read(&source, 0, LEN).map_err(|e| e.to_string())
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn dockers_registry_serves_images_by_tag_digest_and_platform() {
    let program = match program() {
        Ok(program) => program,
        Err(why) => {
            return skipped!("dockers_registry_serves_images_by_tag_digest_and_platform: {why}");
        }
    };
    let login = Login::Password { user: "me".into(), password: Secret("secret".into()) };
    for with_user in [false, true] {
        let registry = DockerRegistry::start(&program, with_user);
        let (blob, config) = (contents(0), b"{}".to_vec());
        registry.push_blob(&blob);
        registry.push_blob(&config);
        let config = descriptor("application/vnd.oci.empty.v1+json", &config, "");
        let manifest = image(&[descriptor(EROFS, &blob, "")])
            .replace("\"layers\"", &format!("\"config\": {config}, \"layers\""));
        registry.push_manifest("1", IMAGE, &manifest);
        let platform = ", \"platform\": {\"os\": \"linux\", \"architecture\": \"amd64\"}";
        registry.push_manifest("all", INDEX, &index(&[descriptor(IMAGE, manifest.as_bytes(), platform)]));
        let login = with_user.then_some(&login);
        for target in [":1", ":all", &format!("@{}", digest(manifest.as_bytes()))] {
            assert_eq!(registry.read(target, login), Ok(()), "{target}");
        }
        let error = registry.read(":none", login).unwrap_err();
        assert!(error.contains("no such image"), "{error}");
        if with_user {
            let wrong = Login::Password { user: "me".into(), password: Secret("wrong".into()) };
            for login in [None, Some(&wrong)] {
                let error = registry.read(":1", login).unwrap_err();
                assert!(error.contains("status 401"), "{error}");
            }
        }
    }
}

/// A file that becomes a blob.
fn upload(bytes: &[u8]) -> Upload {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Upload { file, len_bytes: bytes.len() as u64, digest: digest(bytes) }
}

#[test]
fn dockers_registry_takes_images_and_what_it_has_is_not_sent_again() {
    let program = match program() {
        Ok(program) => program,
        Err(why) => {
            return skipped!("dockers_registry_takes_images_and_what_it_has_is_not_sent_again: {why}");
        }
    };
    let login = Login::Password { user: "me".into(), password: Secret("secret".into()) };
    for with_user in [false, true] {
        let registry = DockerRegistry::start(&program, with_user);
        let push = |tag: &str, login: Option<&Login>, list: &[u8]| {
            let reference = OciReference::parse(&format!("oci://{}/me/app{tag}", registry.address)).unwrap();
            let image = ImageUpload {
                image: upload(&contents(0)),
                tree: None,
                list: Some(upload(list)),
                platform: "linux/amd64".parse().unwrap(),
                annotations: [("a".to_string(), "b \"c\"".to_string())].into(),
            };
            oci::push(&reference, login, image, Duration::from_secs(10))
        };
        let login = with_user.then_some(&login);
        let first = push(":1", login, b"/bin/a\n").unwrap();
        // The image, its configuration, the list, and the empty configuration of that.
        assert_eq!((first.sent, first.present), (4, 0));
        let again = push(":2", login, b"/bin/b\n").unwrap();
        assert_eq!((again.sent, again.present, again.sent_bytes), (1, 3, 7));
        assert_eq!(first.manifest_digest, again.manifest_digest);
        for target in [":1", ":2", &format!("@{}", first.manifest_digest)] {
            assert_eq!(registry.read(target, login), Ok(()), "{target}");
        }
        if with_user {
            let error = push(":3", None, b"").unwrap_err().to_string();
            assert!(error.contains("log in by"), "{error}");
        }
        let error = push(&format!("@{}", first.manifest_digest), login, b"").unwrap_err().to_string();
        assert!(error.contains("is pushed by a tag"), "{error}");
    }
}
