//! Images in buckets and registries: commands and mounts, with credentials from where users have them.

#[path = "../../../remote/tests/support/registry.rs"]
pub mod registry;
#[path = "../../../remote/tests/support/s3_store.rs"]
pub mod s3_store;

use crate::image_digest::{image, mount_sandbox};
use crate::image_remote::server;
use crate::support::{Ran, Sandbox};
use registry::{
    EROFS, IMAGE, INDEX, Manifests, NAME, descriptor, digest, index, put_blob, token_answer, unauthorized,
};
use s3_store::{StoreKey, judge, metadata};
use server::{Fault, Object, Server};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Exit codes of the program.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const UNAVAILABLE: i32 = 5;
const DAMAGED: i32 = 6;

pub const REGION: &str = "eu-west-3";

/// A command without the settings of this machine.
pub fn command(s: &Sandbox, words: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = s.command(words);
    for (name, _) in std::env::vars() {
        let of_stores = ["AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR"];
        if of_stores.iter().any(|start| name.starts_with(start))
            || name.to_ascii_uppercase().ends_with("_PROXY")
        {
            command.env_remove(name);
        }
    }
    for name in ["DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command.env("HOME", s.path("home")).env("AWS_EC2_METADATA_DISABLED", "true");
    command.envs(variables.iter().copied());
    command
}

pub fn run(s: &Sandbox, words: &str, variables: &[(&str, &str)]) -> Ran {
    Ran::new(words, command(s, words, variables).output().unwrap())
}

pub fn ok(s: &Sandbox, words: &str, variables: &[(&str, &str)]) -> String {
    let ran = run(s, words, variables);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out
}

/// A store with the image, as s3://images/app.erofs, that accepts the key of this number.
fn bucket(image: &Path, current: &Arc<AtomicU64>) -> Server {
    let server = Server::start();
    server.put("/images/app.erofs", Object::new(fs::read(image).unwrap(), "v0"));
    let tree = image.with_extension("verity");
    if tree.exists() {
        server.put("/images/app.erofs.verity", Object::new(fs::read(tree).unwrap(), "t0"));
    }
    let current = current.clone();
    server.fail(move |request| judge(request, &StoreKey::numbered(current.load(Ordering::SeqCst)), REGION));
    server
}

/// The variables with the key of number 0, for the store at this URL.
fn of_environment(endpoint: &str) -> [(&str, &str); 5] {
    [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_REGION", REGION),
        ("AWS_ACCESS_KEY_ID", "KEY0"),
        ("AWS_SECRET_ACCESS_KEY", "hidden0"),
        ("AWS_SESSION_TOKEN", "session0"),
    ]
}

#[test]
fn every_command_reads_images_in_buckets() {
    let s = Sandbox::new();
    let path = image(&s);
    let digest = s.ok(&format!("image digest {}", path.display()));
    let server = bucket(&path, &Arc::default());
    let endpoint = server.url("");
    let variables = of_environment(&endpoint);
    for words in [
        "image ls -lR IMAGE",
        "image show --json IMAGE",
        "image cat IMAGE /noise",
        "image check --json IMAGE",
    ] {
        let local = s.ok(&words.replace("IMAGE", &path.display().to_string()));
        assert_eq!(ok(&s, &words.replace("IMAGE", "s3://images/app.erofs"), &variables), local, "{words}");
    }
    // The tree of a verified image is beside it.
    ok(&s, &format!("image check s3://images/app.erofs --digest {}", digest.trim()), &variables);
    let (out, built) = (s.path("out"), s.path("built"));
    ok(&s, &format!("-q image extract s3://images/app.erofs {}", out.display()), &variables);
    assert!(fs::read(out.join("noise")).unwrap() == fs::read(s.path("tree/noise")).unwrap());
    ok(&s, &format!("-q image build s3://images/app.erofs {}", built.display()), &variables);
    assert_eq!(ok(&s, "image digest s3://images/app.erofs", &variables), digest);

    run(&s, "image ls s3://images/other", &variables).fails(NOT_FOUND, "status 404");
    run(&s, "image ls s3://images", &variables).fails(USAGE, "'/' and the key");
    let ls = "image ls s3://images/app.erofs";
    let with = |changed: &[(&str, &str)]| run(&s, ls, &[&variables[..], changed].concat());
    with(&[("AWS_SECRET_ACCESS_KEY", "wrong")]).fails(UNAVAILABLE, "the credentials of the environment");
    with(&[("AWS_SKIP_SIGNATURE", "true")]).fails(UNAVAILABLE, "because of AWS_SKIP_SIGNATURE");
    with(&[("AWS_ENDPOINT_URL_S3", "ftp://host")]).fails(UNAVAILABLE, "the endpoint of S3");
    run(&s, ls, &variables[..2]).fails(UNAVAILABLE, "no credentials were found");
}

/// Blobs of Azure and objects of Google, by the variables that their tools read.
#[test]
fn commands_read_blobs_of_azure_and_objects_of_google() {
    let s = Sandbox::new();
    let path = image(&s);
    let bytes = fs::read(&path).unwrap();
    let server = Server::start();
    for path in ["/account/images/a%20b/app.erofs", "/images/app.erofs"] {
        server.put(path, Object::new(bytes.clone(), "v0"));
    }
    server.fail(|request| {
        let signature = request.headers.get("authorization").map_or("", String::as_str);
        match request.path.starts_with("/account/") {
            true if signature.starts_with("SharedKey account:") => Fault::None,
            true if request.path.ends_with("?sig=hidden") => Fault::None,
            // An emulator gets no token, whatever the user has.
            false if signature.is_empty() => Fault::None,
            _ => Fault::Status(403, None),
        }
    });
    let (tokens, folder) = (Server::start(), s.path("home/.config/gcloud"));
    fs::create_dir_all(&folder).unwrap();
    let user = format!(
        "{{\"type\": \"authorized_user\", \"client_id\": \"x\", \"client_secret\": \"hidden\", \
         \"refresh_token\": \"hidden\", \"token_uri\": \"{}\"}}",
        tokens.url("/token")
    );
    fs::write(folder.join("application_default_credentials.json"), user).unwrap();
    let (azure, google) = (server.url("/account"), server.url(""));
    let endpoint = ("AZURE_STORAGE_ENDPOINT", azure.as_str());
    let noise = fs::read(s.path("tree/noise")).unwrap();
    for (name, variables) in [
        ("az://images/a b/app.erofs", vec![endpoint, ("AZURE_STORAGE_KEY", "aGlkZGVu")]),
        ("az://images/a b/app.erofs", vec![endpoint, ("AZURE_STORAGE_SAS_TOKEN", "?sig=hidden")]),
        ("gs://images/app.erofs", vec![("STORAGE_EMULATOR_HOST", google.as_str())]),
    ] {
        let output = command(&s, "image cat", &variables).args([name, "/noise"]).output().unwrap();
        assert!(output.stdout == noise, "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(tokens.take_log().len(), 0);
    run(&s, "image ls az://images/x", &[]).fails(UNAVAILABLE, "AZURE_STORAGE_ACCOUNT_NAME is not set");
    run(&s, "image ls az://images", &[endpoint, ("AZURE_SKIP_SIGNATURE", "1")])
        .fails(USAGE, "the name of a blob");
    run(&s, "image ls gs://images", &[("GOOGLE_SKIP_SIGNATURE", "1")]).fails(USAGE, "the name of an object");
    let wrong = [endpoint, ("AZURE_STORAGE_SAS_TOKEN", "sig=hidden2")];
    let ran = run(&s, "image ls az://images/x", &wrong);
    assert!(!ran.err.contains("hidden"), "{ran:?}");
    ran.fails(UNAVAILABLE, "the shared access signature of AZURE_STORAGE_SAS_TOKEN");
}

#[test]
fn profiles_and_their_programs_have_credentials() {
    let s = Sandbox::new();
    let server = bucket(&image(&s), &Arc::default());
    let aws = s.path("home/.aws");
    fs::create_dir_all(&aws).unwrap();
    let program = s.path("program");
    fs::write(
        &program,
        r#"echo '{"Version": 1, "AccessKeyId": "KEY0", "SecretAccessKey": "hidden0", "SessionToken": "session0"}'"#,
    )
    .unwrap();
    let config = format!(
        "[default]\nregion = {REGION}\nendpoint_url = {0}\n[profile run]\nregion = {REGION}\nendpoint_url = {0}\n\
         credential_process = sh {1}\n",
        server.url(""),
        program.display()
    );
    fs::write(aws.join("config"), config).unwrap();
    let keys = "[default]\naws_access_key_id = KEY0\naws_secret_access_key = hidden0\naws_session_token = session0\n";
    fs::write(aws.join("credentials"), keys).unwrap();
    let cat = "image cat s3://images/app.erofs /noise";
    assert_eq!(ok(&s, cat, &[]).len(), 300_000);
    assert_eq!(ok(&s, cat, &[("AWS_PROFILE", "run")]).len(), 300_000);
    fs::write(&program, "echo hidden; exit 9").unwrap();
    let ran = run(&s, cat, &[("AWS_PROFILE", "run")]);
    assert!(!(ran.out.clone() + &ran.err).contains("hidden"));
    ran.fails(UNAVAILABLE, "its credential_process: it failed: exit status: 9");
}

/// The mount outlives the keys of the instance, and the server of it has secrets nowhere but in its memory.
#[test]
fn a_mount_renews_keys_of_the_instance_and_shows_none() {
    let Some(s) = mount_sandbox("a_mount_renews_keys_of_the_instance_and_shows_none") else { return };
    let current = Arc::new(AtomicU64::new(0));
    let (server, machine) = (bucket(&s.image, &current), Server::start());
    let shown = current.clone();
    machine.fail(move |request| metadata(request, &StoreKey::numbered(shown.load(Ordering::SeqCst)), 3600));
    let mount = format!("image mount s3://images/app.erofs {} --timeout 5s", s.at.display());
    let (endpoint, of_machine) = (server.url(""), machine.url(""));
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_REGION", REGION),
        ("AWS_EC2_METADATA_DISABLED", "false"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", of_machine.as_str()),
    ];
    ok(&s.inner, &mount, &variables);
    current.store(1, Ordering::SeqCst);
    let noise = fs::read(s.inner.path("tree/noise")).unwrap();
    assert!(fs::read(s.at.join("noise")).unwrap() == noise);
    assert_eq!(s.stats()["image"], "s3://images/app.erofs");
    assert_eq!(s.stats()["remote"]["failed_reads"], 0);
    ok(&s.inner, "image unmount s3://images/app.erofs", &[]);
    s.assert_nothing_left();

    current.store(0, Ordering::SeqCst);
    ok(&s.inner, &mount, &of_environment(&endpoint));
    let pid = s.stats()["server"]["pid"].as_u64().unwrap();
    let of_server = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let process =
        String::from_utf8_lossy(&[of_server("cmdline"), of_server("environ")].concat()).into_owned();
    assert!(process.contains("AWS_REGION") && !process.contains("hidden0") && !process.contains("session0"));
    let files =
        Command::new("grep").args(["-rl", "hidden0\\|session0"]).arg(s.inner.runtime()).output().unwrap();
    assert!(files.stdout.is_empty(), "{files:?}");
    // Nothing can renew these: reads say so, in the statistics.
    current.store(2, Ordering::SeqCst);
    let error = fs::read(s.at.join("noise")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let last = s.stats()["remote"]["last_error"].as_str().unwrap().to_string();
    assert!(last.contains("of the environment have expired; get new ones"), "{last}");
    ok(&s.inner, &s.words("unmount", ""), &[]);
    s.assert_nothing_left();
}

/// A registry with the image: as `plain`, as `verified` with its tree, as `treeless` with its digest only, and as `all` for a platform. It wants tokens,
/// for which the user `me` logs in.
struct TestRegistry {
    server: Server,
    _tokens: Server,
    current: Arc<AtomicU64>,
    name: String,
}

impl TestRegistry {
    fn start(path: &Path, digest_of_image: &str) -> Self {
        let (server, tokens, current) = (Server::start(), Server::start(), Arc::new(AtomicU64::new(1)));
        let (blob, tree) = (fs::read(path).unwrap(), fs::read(path.with_extension("verity")).unwrap());
        put_blob(&server, &blob);
        put_blob(&server, &tree);
        let mut manifests = Manifests::default();
        let plain = registry::image(&[descriptor(EROFS, &blob, "")]);
        manifests.add("plain", IMAGE, &plain);
        let annotations =
            format!(", \"annotations\": {{\"io.github.pagefold.fsverity.digest\": \"{digest_of_image}\"}}");
        let tree = descriptor("application/vnd.pagefold.fsverity.tree.v1", &tree, "");
        let verified = registry::image(&[descriptor(EROFS, &blob, &annotations), tree]);
        manifests.add("verified", IMAGE, &verified);
        let treeless = registry::image(&[descriptor(EROFS, &blob, &annotations)]);
        manifests.add("treeless", IMAGE, &treeless);
        let platform = ", \"platform\": {\"os\": \"linux\", \"architecture\": \"riscv64\"}";
        manifests.add("all", INDEX, &index(&[descriptor(IMAGE, plain.as_bytes(), platform)]));
        let shown = current.clone();
        tokens.fail(move |request| match request.headers.get("authorization").map(String::as_str) {
            Some("Basic bWU6aGlkZGVu") => token_answer(shown.load(Ordering::SeqCst), 300),
            _ => Fault::Status(401, None),
        });
        let challenge = format!("Bearer realm=\"{}\",service=\"test\"", tokens.url("/token"));
        let valid = current.clone();
        server.fail(move |request| {
            let wanted = format!("Bearer token-{}", valid.load(Ordering::SeqCst));
            unauthorized(request, &wanted, &challenge).unwrap_or_else(|| manifests.answer(request))
        });
        let name = format!("oci://{}/{NAME}", server.address);
        TestRegistry { server, _tokens: tokens, current, name }
    }

    /// Writes docker's configuration, with a program that knows the login.
    fn log_in(&self, s: &Sandbox) -> String {
        let folder = s.path("bin");
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("docker-credential-test");
        fs::write(&program, "#!/bin/sh\necho '{\"Username\": \"me\", \"Secret\": \"hidden\"}'\n").unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir_all(s.path("home/.docker")).unwrap();
        let config = format!("{{\"credHelpers\": {{\"{}\": \"test\"}}}}", self.server.address);
        fs::write(s.path("home/.docker/config.json"), config).unwrap();
        format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
    }
}

#[test]
fn images_in_registries_are_read_with_the_login_of_docker() {
    let s = Sandbox::new();
    let path = image(&s);
    let of_image = s.ok(&format!("image digest {}", path.display()));
    let registry = TestRegistry::start(&path, of_image.trim());
    let name = &registry.name;
    run(&s, &format!("image ls {name}:plain"), &[]).fails(UNAVAILABLE, "log in by 'docker login 127.0.0.1:");
    let search = registry.log_in(&s);
    let variables = [("PATH", search.as_str())];
    let local = s.ok(&format!("image ls -lR {}", path.display()));
    for target in [":plain", ":verified", ":all --platform linux/riscv64"] {
        assert_eq!(ok(&s, &format!("image ls -lR {name}{target}"), &variables), local, "{target}");
    }
    let out = s.path("out");
    ok(&s, &format!("-q image extract {name}:verified {}", out.display()), &variables);
    assert!(fs::read(out.join("noise")).unwrap() == fs::read(s.path("tree/noise")).unwrap());
    let digest_word = format!("--digest {}", of_image.trim());
    ok(&s, &format!("image check {name}:verified {digest_word}"), &variables);
    run(&s, &format!("image check {name}:plain {digest_word}"), &variables)
        .fails(UNAVAILABLE, "has no Merkle tree; name one with --merkle-tree");
    let tree = path.with_extension("verity");
    ok(&s, &format!("image check {name}:plain {digest_word} --merkle-tree {}", tree.display()), &variables);
    let of_other = format!("image check {name}:plain {digest_word} --merkle-tree {name}:verified#verity");
    ok(&s, &of_other, &variables);
    run(&s, &format!("image ls {name}:all --platform linux/s390x"), &variables)
        .fails(NOT_FOUND, "one of: linux/riscv64");
    run(&s, &format!("image ls {name}:none"), &variables).fails(NOT_FOUND, "no such image");
    run(&s, &format!("image ls {name}:plain --platform linux"), &variables).fails(USAGE, "--platform");
    run(&s, &format!("image ls {name}@sha256:0"), &variables).fails(USAGE, "64 hexadecimal digits");
    // A blob that is not the one of its digest: the ranges of the verified image tell, and the others cannot.
    let mut bytes = fs::read(&path).unwrap();
    let blob = format!("/v2/{NAME}/blobs/{}", digest(&bytes));
    let at = bytes.len() - 5000;
    bytes[at] ^= 1;
    registry.server.put(&blob, Object { bytes: Arc::new(bytes), etag: None, last_modified: None });
    let ran = run(&s, &format!("image cat {name}:verified /noise"), &variables);
    assert!(ran.code == DAMAGED && ran.err.contains("differs from its digest"), "{}", ran.err);
}

#[test]
fn a_mount_of_a_registry_renews_its_token_and_says_whether_it_is_verified() {
    let Some(s) = mount_sandbox("a_mount_of_a_registry_renews_its_token_and_says_whether_it_is_verified")
    else {
        return;
    };
    let of_image = s.inner.ok(&format!("image digest {}", s.image.display()));
    let registry = TestRegistry::start(&s.image, of_image.trim());
    let search = registry.log_in(&s.inner);
    let variables = [("PATH", search.as_str())];
    for (n, (target, note)) in [
        ("plain", "are not verified, because its manifest has no digest"),
        ("treeless", "are not verified, because its manifest has a digest of fs-verity and no Merkle tree"),
        ("verified", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("{}:{target}", registry.name);
        let ran = run(&s.inner, &format!("image mount {name} {} --timeout 5s", s.at.display()), &variables);
        assert!(ran.code == 0 && ran.err.contains(note), "{ran:?}");
        assert_eq!(ran.err.contains("are not verified"), !note.is_empty(), "{ran:?}");
        registry.current.store(n as u64 + 2, Ordering::SeqCst);
        assert!(fs::read(s.at.join("noise")).unwrap() == fs::read(s.inner.path("tree/noise")).unwrap());
        assert_eq!(s.stats()["image"], name);
        let files = Command::new("grep").args(["-rl", "hidden"]).arg(s.inner.runtime()).output().unwrap();
        assert!(files.stdout.is_empty(), "{files:?}");
        ok(&s.inner, &s.words("unmount", ""), &variables);
        s.assert_nothing_left();
    }
}
