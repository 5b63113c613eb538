//! Another implementation of Azure's storage, which checks signatures: Azurite, Microsoft's emulator.

use crate::azure::open_object;
use crate::{LEN, contents, options, read};
use pagefold_remote::azure::{AzureCredentials, AzureSettings};
use pagefold_remote::stores::ObjectName;
use pagefold_remote::{RemoteError, RemoteSource, Secret};
use pagefold_testkit::skipped;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The key of the emulator, which its documentation has.
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running emulator; it ends with its standard input.
struct Azurite {
    child: Child,
    endpoint: String,
    sas: String,
}

impl Azurite {
    /// Starts the emulator with an object in the containers `images` and `public`; the error says why it cannot be.
    fn start(object: &Path, folder: &Path) -> Result<Self, String> {
        let script = crate::guest::install("azurite.sh")?;
        let mut child = Command::new("node")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/blobs.js"))
            .args([Path::new(&script), object, folder])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut endpoint, mut sas) = (None, None);
        loop {
            let Some(Ok(line)) = lines.next() else {
                let _ = child.wait();
                return Err("Azurite does not start".into());
            };
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("endpoint", url) => endpoint = Some(url.to_string()),
                ("sas", query) => sas = Some(query.to_string()),
                ("ready", _) => break,
                _ => {}
            }
        }
        let (endpoint, sas) = endpoint.zip(sas).ok_or("Azurite has no endpoint")?;
        Ok(Azurite { child, endpoint, sas })
    }

    fn open(&self, name: &str, credentials: AzureCredentials) -> Result<RemoteSource, RemoteError> {
        let account = "devstoreaccount1".to_string();
        let settings = AzureSettings { account, endpoint: self.endpoint.clone(), credentials };
        open_object(&ObjectName::parse(name).unwrap(), &settings, &options(10_000))
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn azurite_accepts_our_signatures_and_no_wrong_ones() {
    let (file, folder) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(file.path(), contents(0)).unwrap();
    let azurite = match Azurite::start(file.path(), folder.path()) {
        Ok(azurite) => azurite,
        Err(why) => return skipped!("azurite_accepts_our_signatures_and_no_wrong_ones: {why}"),
    };
    let origin = "a test".to_string();
    let key = |key: &str| AzureCredentials::Key { key: Secret(key.into()), origin: origin.clone() };
    let sas = |query: &str| AzureCredentials::Sas { query: Secret(query.into()), origin: origin.clone() };
    for (name, credentials) in [
        ("az://images/a b/app.erofs", key(KEY)),
        ("az://images/a b/app.erofs", sas(&azurite.sas)),
        ("az://public/a b/app.erofs", AzureCredentials::Skipped),
    ] {
        let source = azurite.open(name, credentials).unwrap();
        read(&source, 0, LEN).unwrap();
    }
    let name = "az://images/a b/app.erofs";
    let error = |credentials| azurite.open(name, credentials).err().unwrap();
    let wrong = error(key("d3Jvbmc="));
    assert!(wrong.is_denied() && wrong.to_string().contains("AuthorizationFailure"), "{wrong}");
    let wrong = error(sas(&azurite.sas.replace("sig=", "sig=x")));
    assert!(wrong.is_denied() && !wrong.to_string().contains("sig="), "{wrong}");
    // The emulator says that it has no such blob, so that nobody learns the names of private ones.
    let bare = error(AzureCredentials::Skipped);
    assert!(bare.is_missing() || bare.is_denied(), "{bare}");
    let missing = azurite.open("az://images/none", key(KEY)).err().unwrap();
    assert!(missing.is_missing() && missing.to_string().contains("(BlobNotFound)"), "{missing}");
}
