//! Settings from environments and files that the tests write.

use super::*;
use std::collections::HashMap;

/// The settings with these variables, and a home folder of these files.
fn with(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Result<S3Settings, SettingsError> {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    for (name, text) in files {
        std::fs::write(home.path().join(".aws").join(name), text).unwrap();
    }
    let mut all: HashMap<String, String> =
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    all.insert("HOME".into(), home.path().display().to_string());
    S3Settings::from_environment(&|name| all.get(name).filter(|value| !value.is_empty()).cloned())
}

fn key_id(settings: Result<S3Settings, SettingsError>) -> String {
    match settings.unwrap().keys {
        KeySource::Keys(keys) => keys.key_id,
        other => panic!("{other:?}"),
    }
}

fn reason(settings: Result<S3Settings, SettingsError>) -> String {
    settings.unwrap_err().to_string()
}

#[test]
fn the_environment_wins_over_profiles_and_these_over_services() {
    let config = "[default]\nregion = eu-west-3\naws_access_key_id = C\naws_secret_access_key = s\n\
        [profile other]\nendpoint_url = http://127.0.0.1:9000/\ns3 =\n  endpoint_url = http://nested\n";
    let credentials = "# comment\n[default]\naws_access_key_id=F\naws_secret_access_key = a+/b # comment\n\
        [other]\naws_access_key_id = O\naws_secret_access_key = s\naws_session_token = t\n";
    let files = [("config", config), ("credentials", credentials)];
    let of_default = with(&[], &files).unwrap();
    assert_eq!((of_default.region.as_str(), of_default.is_path_style), ("eu-west-3", false));
    let KeySource::Keys(keys) = of_default.keys else { panic!() };
    assert_eq!((keys.key_id.as_str(), keys.secret_key.0.as_str(), keys.token), ("F", "a+/b", None));
    assert_eq!(keys.origin, "the profile 'default'");

    let other = with(&[("AWS_PROFILE", "other")], &files).unwrap();
    assert_eq!(other.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
    assert!(other.is_path_style && other.region == DEFAULT_REGION);
    let KeySource::Keys(keys) = other.keys else { panic!() };
    assert_eq!(keys.token, Some(Secret("t".into())));

    let env = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "us-west-2")];
    assert_eq!(with(&env, &files).unwrap().region, "us-west-2");
    assert_eq!(key_id(with(&env, &files)), "E");
    let skipped = [&env[..], &[("AWS_SKIP_SIGNATURE", "true")]].concat();
    assert_eq!(with(&skipped, &files).unwrap().keys, KeySource::Skipped);
    let instance = KeySource::Instance { url: INSTANCE_METADATA.into() };
    assert_eq!(with(&[], &[]).unwrap().keys, instance);
    let role = [("AWS_ROLE_ARN", "arn:aws:iam::1:role/x"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")];
    let identity = KeySource::WebIdentity {
        url: "https://sts.eu-west-3.amazonaws.com/".into(),
        role_arn: "arn:aws:iam::1:role/x".into(),
        session_name: "pagefold".into(),
        token_file: "/token".into(),
    };
    assert_eq!(with(&role, &files).unwrap().keys, identity);
    let plain = [&role[..], &[("AWS_ENDPOINT_URL_STS", "http://example.org/")]].concat();
    assert!(reason(with(&plain, &files)).contains("neither of https:// nor of this machine"));
    assert_eq!(with(&[("AWS_EC2_METADATA_DISABLED", "1")], &[]).unwrap().keys, KeySource::Nothing);
    let container = with(&[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x")], &[]).unwrap().keys;
    assert_eq!(
        container,
        KeySource::Container {
            url: "http://169.254.170.2/v2/x".into(),
            authorization: None,
            authorization_file: None
        }
    );
}

#[test]
fn settings_that_cannot_be_used_are_errors_without_secrets() {
    let id = ("AWS_ACCESS_KEY_ID", "E");
    assert!(reason(with(&[id], &[])).contains("AWS_SECRET_ACCESS_KEY is not set"));
    let hostile = reason(with(&[("AWS_ACCESS_KEY_ID", "a\r\nb"), ("AWS_SECRET_ACCESS_KEY", "hidden")], &[]));
    assert!(hostile.contains("the key of the environment") && !hostile.contains("hidden"));
    assert!(reason(with(&[("AWS_PROFILE", "none")], &[])).contains("it is in none of the files"));
    assert!(reason(with(&[("AWS_REGION", "evil.example.org/")], &[])).contains("region"));
    assert!(reason(with(&[("AWS_ENDPOINT_URL", "minio:9000")], &[])).contains("http://"));
    assert!(reason(with(&[("AWS_SKIP_SIGNATURE", "maybe")], &[])).contains("neither true nor false"));
    let far = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.org/x");
    assert!(reason(with(&[far], &[])).contains("neither of https:// nor of this machine"));
    let role = "[default]\nrole_arn = arn:aws:iam::1:role/x\n";
    assert!(reason(with(&[], &[("config", role)])).contains("export-credentials --profile default"));
}

#[test]
fn a_credential_process_is_run_and_its_output_checked() {
    let run = |script: &str| with(&[], &[("config", &format!("[default]\ncredential_process = {script}\n"))]);
    let good = r#"{"Version": 1, "AccessKeyId": "P", "SecretAccessKey": "hidden", "SessionToken": "t"#;
    let KeySource::Keys(keys) =
        run(&format!("echo '{good}\", \"Expiration\": \"2999-01-01T00:00:00Z\"}}'")).unwrap().keys
    else {
        panic!()
    };
    assert_eq!((keys.key_id.as_str(), keys.expires_unix_s), ("P", Some(32_472_144_000)));
    for (script, says) in [
        (format!("echo '{good}\", \"Expiration\": \"1999-01-01T00:00:00Z\"}}'"), "have expired already"),
        (format!("echo '{good}\", \"Expiration\": \"soon\"}}'"), "no time"),
        (format!("echo '{good}\"}}' | sed s/1/2/"), "version 2"),
        ("echo hidden".to_string(), "not the JSON of credentials"),
        ("exit 7".to_string(), "exit status: 7"),
    ] {
        let text = reason(run(&script));
        assert!(text.contains(says) && !text.contains("hidden"), "{script}: {text}");
    }
}

#[test]
fn urls_have_the_bucket_in_the_host_or_in_the_path() {
    let location = |text: &str| ObjectName::parse(text).unwrap();
    let url = |variables: &[(&str, &str)], text: &str, region: &str| {
        with(variables, &[]).unwrap().url(&location(text), region).unwrap().as_str().to_string()
    };
    assert_eq!(url(&[], "s3://images/a b", "eu-west-3"), "https://images.s3.eu-west-3.amazonaws.com/a%20b");
    assert_eq!(
        url(&[], "s3://my.images/a", "cn-north-1"),
        "https://s3.cn-north-1.amazonaws.com.cn/my.images/a"
    );
    let endpoint = ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/base/");
    assert_eq!(url(&[endpoint], "s3://images/a", "x"), "http://127.0.0.1:9000/base/images/a");
    for (endpoint, shown) in
        [("https://a:443", "https://a"), ("http://a:80/b//", "http://a/b"), ("http://a:443", "http://a:443")]
    {
        assert_eq!(url(&[("AWS_ENDPOINT_URL", endpoint)], "s3://images/a", "x"), format!("{shown}/images/a"));
    }
    let hosted =
        [("AWS_ENDPOINT_URL_S3", "https://example.org"), ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")];
    assert_eq!(url(&hosted, "s3://images/a", "x"), "https://images.example.org/a");
}
