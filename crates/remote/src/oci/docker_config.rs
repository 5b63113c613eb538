//! The login for a registry in one file of logins, as docker, podman, skopeo and buildah write it: in the file, or from a
//! program that it names. `login_files.rs` has the files.
//!
//! A command reads it and runs the program. The server of a mount gets the login, and fetches tokens with it.

use crate::Secret;
use crate::environment::{SettingsError, in_file};
use crate::program::{self, ProgramError};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The key of the hub in configurations.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";
/// The keys of the hub in programs: docker's own, and podman's.
const DOCKER_HUB_KEYS: [&str; 2] = [DOCKER_HUB_KEY, "docker.io"];
/// The user of a program's answer whose password is an identity token.
const TOKEN_USER: &str = "<token>";

/// A login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Login {
    /// User and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// A token that is exchanged for others.
    IdentityToken(Secret),
    /// A token that registries take as it is.
    RegistryToken(Secret),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    auths: BTreeMap<String, Auth>,
    #[serde(rename = "credsStore")]
    creds_store: Option<String>,
    #[serde(rename = "credHelpers")]
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: Option<Secret>,
    username: Option<String>,
    password: Option<Secret>,
    identitytoken: Option<Secret>,
    registrytoken: Option<Secret>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProgramOutput {
    username: String,
    secret: Secret,
}

/// The login for a repository of a registry in the text of a file; `None` if it has none. `registry` is the host, and perhaps
/// the port. A key may name a part of the registry's repositories: the longest key that fits counts. `notes` gets a sentence
/// if a program that the file names is not installed.
pub(super) fn login_in(
    path: &Path,
    text: &str,
    [registry, repository]: [&str; 2],
    notes: &mut Vec<String>,
) -> Result<Option<Login>, SettingsError> {
    // Programs leave an empty file where they removed the last login.
    if text.trim().is_empty() {
        return Ok(None);
    }
    let wrong = |why: String| in_file(path, why);
    // The error of the parser could quote a secret.
    let config: Config = serde_json::from_str(text)
        .map_err(|e| wrong(format!("is no file of logins: line {}, column {}", e.line(), e.column())))?;
    let helper = best(config.cred_helpers, registry, repository);
    if let Some(name) = helper.or(config.creds_store).filter(|name| !name.is_empty()) {
        let what = format!("the program docker-credential-{name} for the registry '{registry}'");
        match of_first(registry, |key| from_program(&name, key)) {
            Ok(Some(login)) => return checked(Some(login), &wrong),
            Ok(None) => {}
            Err(ProgramError::Missing) => {
                notes.push(format!("'{}' names {what}, which is not installed", path.display()));
            }
            Err(why) => {
                let why = format!("cannot be used: {why}");
                return Err(SettingsError::Value { name: what, why });
            }
        }
    }
    match best(config.auths, registry, repository) {
        Some(auth) => {
            checked(of_file(auth).map_err(|why| wrong(format!("for '{registry}': {why}")))?, &wrong)
        }
        None => Ok(None),
    }
}

/// The value of the longest key that fits, and of those the one that programs write today.
fn best<T>(values: BTreeMap<String, T>, registry: &str, repository: &str) -> Option<T> {
    let fitting =
        values.into_iter().filter_map(|(key, value)| fit(&key, registry, repository).zip(Some(value)));
    fitting.max_by_key(|(fit, _)| *fit).map(|(_, value)| value)
}

/// How well a key fits a repository. Greater fits better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    /// The length of the path.
    path_len: usize,
    form: KeyForm,
}

/// The form of a key. Several keys of one registry stand in a file that programs of different ages have written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeyForm {
    /// A URL, as old programs write it.
    Url,
    /// A host with the version of a protocol.
    HostAndVersion,
    /// Another name of the host, or in other letters.
    OtherHost,
    /// The registry as it is named.
    Registry,
    /// The key that docker itself writes for its hub.
    Hub,
}

/// How well a key fits a repository; `None` if the key, which may be a URL, is for others. The path of a URL is that of a
/// version of docker's protocol, and says nothing.
fn fit(key: &str, registry: &str, repository: &str) -> Option<Fit> {
    let (is_url, rest) = key.split_once("://").map_or((false, key), |(_, rest)| (true, rest));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_host = match registry {
        "docker.io" => ["docker.io", "index.docker.io", "registry-1.docker.io"].contains(&host),
        _ => host.eq_ignore_ascii_case(registry),
    };
    let (path, form) = match path.trim_end_matches('/') {
        _ if key == DOCKER_HUB_KEY => ("", KeyForm::Hub),
        _ if is_url => ("", KeyForm::Url),
        "v1" | "v2" => ("", KeyForm::HostAndVersion),
        path if host == registry => (path, KeyForm::Registry),
        path => (path, KeyForm::OtherHost),
    };
    let rest = repository.strip_prefix(path);
    let is_path = path.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    (is_host && is_path).then_some(Fit { path_len: path.len(), form })
}

fn of_file(auth: Auth) -> Result<Option<Login>, String> {
    let is_some = |secret: &Secret| !secret.0.is_empty();
    if let Some(token) = auth.registrytoken.filter(is_some) {
        return Ok(Some(Login::RegistryToken(token)));
    }
    if let Some(token) = auth.identitytoken.filter(is_some) {
        return Ok(Some(Login::IdentityToken(token)));
    }
    if let Some(Secret(encoded)) = auth.auth.filter(is_some) {
        let encoded = encoded.trim();
        let decoded = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded));
        let decoded = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        // Docker ends some of them with a zero byte.
        let decoded = decoded.as_deref().map(|text| text.trim_end_matches('\0'));
        return match decoded.and_then(|text| text.split_once(':')) {
            Some((user, password)) => Ok(Some(of_user(user.to_string(), Secret(password.to_string())))),
            None => Err("its auth is not the base64 of user:password".to_string()),
        };
    }
    Ok(auth.username.zip(auth.password).map(|(user, password)| of_user(user, password)))
}

fn of_user(user: String, password: Secret) -> Login {
    match user == TOKEN_USER {
        true => Login::IdentityToken(password),
        false => Login::Password { user, password },
    }
}

/// Refuses a login that would end a header.
fn checked(
    login: Option<Login>,
    wrong: &dyn Fn(String) -> SettingsError,
) -> Result<Option<Login>, SettingsError> {
    let is_good = match &login {
        Some(Login::RegistryToken(token)) => token.0.bytes().all(|b| b.is_ascii_graphic()),
        Some(Login::Password { user, .. }) => !user.contains(':'),
        Some(Login::IdentityToken(_)) | None => true,
    };
    match is_good {
        true => Ok(login),
        false => Err(wrong("has a login with characters that logins do not have".to_string())),
    }
}

/// Asks for the keys of a registry in turn, until one has a login.
fn of_first(
    registry: &str,
    mut ask: impl FnMut(&str) -> Result<Option<Login>, ProgramError>,
) -> Result<Option<Login>, ProgramError> {
    let keys: &[&str] = if registry == "docker.io" { &DOCKER_HUB_KEYS } else { &[registry] };
    keys.iter().find_map(|key| ask(key).transpose()).transpose()
}

/// Asks a program; `None` if it has no login for this key.
fn from_program(name: &str, key: &str) -> Result<Option<Login>, ProgramError> {
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !is_name {
        let what = "its name has other characters than names of programs";
        return Err(ProgramError::Failed(what.to_string()));
    }
    let mut command = Command::new(format!("docker-credential-{name}"));
    // Its answer, and its complaint that there is nothing, are on standard output.
    command.arg("get");
    of_output(program::run(command, key.as_bytes(), program::TIME_LIMIT))
}

/// The login that a program printed.
fn of_output(output: Result<Vec<u8>, ProgramError>) -> Result<Option<Login>, ProgramError> {
    let output = match output {
        Ok(output) => output,
        // All of them end with status 1 if they know nothing, and nothing else tells that from a failure.
        Err(ProgramError::Status(status)) if status.code() == Some(1) => return Ok(None),
        Err(why) => return Err(why),
    };
    let output: ProgramOutput = serde_json::from_slice(&output)
        .map_err(|_| ProgramError::Failed("its output is not the JSON of a login".to_string()))?;
    Ok(Some(of_user(output.username, output.secret)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn with(config: &str, registry: &str) -> Result<Option<Login>, SettingsError> {
        let (registry, repository) = registry.split_once('/').unwrap_or((registry, "me/app"));
        login_in(Path::new("config.json"), config, [registry, repository], &mut Vec::new())
    }

    fn password(user: &str, password: &str) -> Option<Login> {
        Some(Login::Password { user: user.into(), password: Secret(password.into()) })
    }

    #[test]
    fn logins_of_the_file_are_found_by_host() {
        let config = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOmE6Yg=="},
            "ghcr.io": {"auth": "bWU6c2VjcmV0"},
            "https://localhost:5000": {"username": "u", "password": "p"},
            "id.example.org": {"auth": "bWU6c2VjcmV0", "identitytoken": "i"},
            "t.example.org": {"registrytoken": "r"},
            "empty.example.org": {}}, "HttpHeaders": {"x": "y"}}"#;
        let of = |registry: &str| with(config, registry).unwrap();
        assert_eq!(of("docker.io"), password("hub", "a:b"));
        assert_eq!(of("ghcr.io"), password("me", "secret"));
        assert_eq!(of("localhost:5000"), password("u", "p"));
        assert_eq!(of("id.example.org"), Some(Login::IdentityToken(Secret("i".into()))));
        assert_eq!(of("t.example.org"), Some(Login::RegistryToken(Secret("r".into()))));
        assert_eq!((of("empty.example.org"), of("localhost"), of("other")), (None, None, None));
        assert_eq!(
            (with("", "ghcr.io"), with(" \n", "ghcr.io"), with("{}", "ghcr.io")),
            (Ok(None), Ok(None), Ok(None))
        );
    }

    #[test]
    fn without_its_program_the_rest_of_the_file_counts_and_a_note_says_so() {
        let config = r#"{"credsStore": "no-such-program-of-pagefold", "auths": {"a.io": {"username": "u", "password": "p"}}}"#;
        for (registry, found) in [("a.io", password("u", "p")), ("b.io", None)] {
            let mut notes = Vec::new();
            let path = Path::new("/home/me/config.json");
            assert_eq!(login_in(path, config, [registry, "x"], &mut notes).unwrap(), found);
            let [note] = &notes[..] else { panic!("{notes:?}") };
            assert!(
                note.contains("/home/me/config.json") && note.contains("docker-credential-no-such"),
                "{note}"
            );
        }
    }

    #[test]
    fn files_that_are_none_are_errors_without_their_contents() {
        for config in [
            r#"{"auths": {"host": {"auth": "hidden"}}}"#,
            r#"{"auths": "hidden"}"#,
            r#"{"auths": {"host": {"registrytoken": "hidden\r\nX: y"}}}"#,
            r#"{"credsStore": "../hidden/x"}"#,
        ] {
            let text = with(config, "host").unwrap_err().to_string();
            assert!(!text.contains("hidden\r") && !text.contains("\"hidden"), "{config}: {text}");
        }
    }

    #[test]
    fn the_longest_key_that_fits_a_repository_counts() {
        let config = r#"{"auths": {
            "ghcr.io": {"username": "host", "password": "p"},
            "ghcr.io/me": {"username": "me", "password": "p"},
            "ghcr.io/me/app": {"username": "app", "password": "p"},
            "quay.io/v1/": {"username": "quay", "password": "p"},
            "other.io/you": {"username": "you", "password": "p"},
            "docker.io/library": {"username": "library", "password": "p"},
            "https://index.docker.io/v1/": {"username": "hub", "password": "p"},
            "https://url.io/v2/": {"username": "url", "password": "p"}}}"#;
        for (repository, user) in [
            ("ghcr.io/me/app", Some("app")),
            ("ghcr.io/me/apple", Some("me")),
            ("ghcr.io/me/app/part", Some("app")),
            ("ghcr.io/meier/app", Some("host")),
            ("quay.io/me/app", Some("quay")),
            ("other.io/you/app", Some("you")),
            ("other.io/me/app", None),
            ("docker.io/library/debian", Some("library")),
            ("docker.io/me/app", Some("hub")),
            ("url.io/me/app", Some("url")),
        ] {
            assert_eq!(
                with(config, repository).unwrap(),
                user.and_then(|user| password(user, "p")),
                "{repository}"
            );
        }
        // A helper of a registry is asked before the one for all, which an empty name switches off.
        let config = r#"{"credHelpers": {"ghcr.io": ""}, "credsStore": "none", "auths": {"ghcr.io": {"username": "u", "password": "p"}}}"#;
        assert_eq!(with(config, "ghcr.io/me/app").unwrap(), password("u", "p"));
    }

    #[test]
    fn the_key_that_programs_write_today_counts_before_older_ones() {
        let hub = DOCKER_HUB_KEY;
        for (registry, first, second) in [
            ("a.io", "a.io", "https://a.io/v1/"),
            // Behind a URL in the order of the alphabet.
            ("quay.io", "quay.io", "https://quay.io/v1/"),
            ("a.io", "a.io", "http://a.io"),
            ("a.io", "a.io", "a.io/v1/"),
            ("z.io", "z.io/v2/", "https://z.io"),
            ("b.io", "b.io", "B.io"),
            ("docker.io", hub, "docker.io"),
            ("docker.io", hub, "registry-1.docker.io"),
            ("docker.io", hub, "https://registry-1.docker.io/v2/"),
            ("docker.io", "docker.io", "index.docker.io"),
            ("docker.io", "docker.io/me", hub),
        ] {
            let auth = |name: &str, user: &str| {
                format!("\"{name}\": {{\"username\": \"{user}\", \"password\": \"p\"}}")
            };
            let both = [auth(first, "first"), auth(second, "second")];
            let found = with(&format!("{{\"auths\": {{{}}}}}", both.join(", ")), registry).unwrap();
            assert_eq!(found, password("first", "p"), "{first} before {second}");
            let found = with(&format!("{{\"auths\": {{{}}}}}", both[1]), registry).unwrap();
            assert_eq!(found, password("second", "p"), "{second} alone");
        }
    }

    /// The program is asked by its path: the search path is that of the whole process.
    #[test]
    fn programs_are_asked_for_logins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docker-credential-test");
        let script = "#!/bin/sh\nread key\ncase $key in\nghcr.io) echo '{\"ServerURL\":\"x\",\"Username\":\"me\",\
            \"Secret\":\"s\"}';;\ntoken) echo '{\"Username\":\"<token>\",\"Secret\":\"t\"}';;\n\
            bad) echo no;;\n*) echo 'credentials not found'; exit 1;;\nesac\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ask = |key: &str| {
            let output =
                program::run(Command::new(&path), format!("{key}\n").as_bytes(), program::TIME_LIMIT);
            of_output(output)
        };
        assert_eq!(ask("ghcr.io"), Ok(password("me", "s")));
        assert_eq!(ask("token"), Ok(Some(Login::IdentityToken(Secret("t".into())))));
        assert_eq!(ask("other"), Ok(None));
        assert!(ask("bad").unwrap_err().to_string().contains("not the JSON of a login"));
    }

    #[test]
    fn a_program_is_asked_for_all_keys_of_the_hub() {
        let ask = |registry: &str, known: &str| {
            let mut asked = Vec::new();
            let found = of_first(registry, |key| {
                asked.push(key.to_string());
                Ok(if key == known { password("me", "s") } else { None })
            });
            (found.unwrap(), asked)
        };
        let hub = || DOCKER_HUB_KEY.to_string();
        assert_eq!(ask("docker.io", DOCKER_HUB_KEY), (password("me", "s"), vec![hub()]));
        assert_eq!(ask("docker.io", "docker.io"), (password("me", "s"), vec![hub(), "docker.io".into()]));
        assert_eq!(ask("docker.io", "").0, None);
        assert_eq!(ask("ghcr.io", "docker.io"), (None, vec!["ghcr.io".into()]));
    }
}
