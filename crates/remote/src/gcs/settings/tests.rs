//! Settings of every kind, from maps in place of the environment, and files.

use super::*;
use std::path::Path;

fn read(variables: &[(&str, &str)]) -> Result<GcsSettings, SettingsError> {
    GcsSettings::from_environment(&|name| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    })
}

/// The file of a service account.
fn account(token_url: &str) -> String {
    let key = serde_json::to_string(include_str!("../testdata/rfc7515.pem")).unwrap();
    format!(
        "{{\"type\": \"service_account\", \"client_email\": \"reader@project\", \"private_key_id\": \"k1\", \
         \"private_key\": {key}, \"token_uri\": \"{token_url}\"}}"
    )
}

const USER: &str = r#"{"type": "authorized_user", "client_id": "program", "client_secret": "hidden1", "refresh_token": "hidden2",
    "quota_project_id": "x"}"#;

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn credentials_are_found_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home").display().to_string();
    let file = write(folder.path(), "account.json", &account("https://oauth2.googleapis.com/token"));
    write(folder.path(), "home/.config/gcloud/application_default_credentials.json", USER);
    let other =
        write(folder.path(), "gcloud/application_default_credentials.json", &account("http://127.0.0.1:1/t"));
    let cloudsdk = Path::new(&other).parent().unwrap().display().to_string();
    let named = ("GOOGLE_APPLICATION_CREDENTIALS", file.as_str());
    let of = |variables: &[(&str, &str)]| {
        let settings = read(variables).unwrap();
        assert_eq!(settings.endpoint, "https://storage.googleapis.com");
        assert!(!format!("{settings:?}").contains("hidden") && !format!("{settings:?}").contains("PRIVATE"));
        settings.credentials
    };
    let home = ("HOME", home.as_str());
    assert_eq!(of(&[("GOOGLE_SKIP_SIGNATURE", "true"), named, home]), GcsCredentials::Skipped);
    let GcsCredentials::ServiceAccount { email, key_id, token_url, .. } = of(&[named, home]) else {
        panic!()
    };
    let found = (email.as_str(), key_id.as_str(), token_url.as_str());
    assert_eq!(found, ("reader@project", "k1", "https://oauth2.googleapis.com/token"));
    let GcsCredentials::User { client_id, refresh_token, token_url, .. } = of(&[home]) else { panic!() };
    assert_eq!(
        (client_id.as_str(), refresh_token.0.as_str(), token_url.as_str()),
        ("program", "hidden2", TOKEN_URL)
    );
    let found = of(&[home, ("CLOUDSDK_CONFIG", &cloudsdk)]);
    assert!(matches!(found, GcsCredentials::ServiceAccount { .. }));
    let GcsCredentials::Machine { url } =
        of(&[("HOME", "/nonexistent"), ("GCE_METADATA_HOST", "127.0.0.1:8")])
    else {
        panic!()
    };
    assert_eq!(url, "http://127.0.0.1:8/computeMetadata/v1/instance/service-accounts/default/token");
    assert_eq!(of(&[("NO_GCE_CHECK", "true")]), GcsCredentials::Nothing);
}

#[test]
fn an_emulator_is_asked_by_http_and_gets_no_token() {
    // No file is read: neither one that is missing nor one that is none is an error.
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), ".config/gcloud/application_default_credentials.json", "none");
    let home = folder.path().display().to_string();
    let named = ("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent");
    let near = read(&[named, ("STORAGE_EMULATOR_HOST", "localhost:4443")]).unwrap();
    assert_eq!(
        near,
        GcsSettings {
            endpoint: "http://localhost:4443".into(),
            payer: None,
            credentials: GcsCredentials::Nothing
        }
    );
    assert_eq!(read(&[("HOME", &home), ("STORAGE_EMULATOR_HOST", "localhost:4443")]).unwrap(), near);
    let far = read(&[named, ("STORAGE_EMULATOR_HOST", "http://gcs:4443/")]).unwrap();
    assert_eq!(
        far,
        GcsSettings { endpoint: "http://gcs:4443".into(), payer: None, credentials: GcsCredentials::Nothing }
    );
}

#[test]
fn files_that_cannot_be_used_are_refused_without_their_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let whole = account("https://oauth2.googleapis.com/token");
    for (text, says) in [
        ("hidden".to_string(), "not the JSON of Google's credentials"),
        (r#"{"type": "external_account", "x": "hidden"}"#.into(), "another kind than 'service_account'"),
        (USER.replace("refresh_token", "other"), "lacks a part"),
        (whole.replace("client_email", "other"), "lacks a part"),
        (whole.replace("BEGIN PRIVATE", "BEGIN OTHER"), "no private key in PEM"),
        (whole.replace("MIIE", "MIIF"), "private key of RSA that is refused"),
        (account("http://example.org/token"), "neither of https:// nor of this machine"),
        (account("ftp:hidden"), "neither of https:// nor of this machine"),
    ] {
        let file = write(folder.path(), "file.json", &text);
        let error = read(&[("GOOGLE_APPLICATION_CREDENTIALS", &file)]).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("hidden"), "{error}");
    }
    let error = read(&[("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent")]).unwrap_err().to_string();
    assert!(error.contains("there is no such file"), "{error}");
    assert!(read(&[("STORAGE_EMULATOR_HOST", "http://")]).is_err());
}
