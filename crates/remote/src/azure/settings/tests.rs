//! Settings of every kind, from maps in place of the environment.

use super::*;

fn read(variables: &[(&str, &str)]) -> Result<AzureSettings, SettingsError> {
    AzureSettings::from_environment(&|name| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    })
}

#[test]
fn a_connection_string_has_everything() {
    let text = "DefaultEndpointsProtocol=https;AccountName=images;AccountKey=aGlkZGVu;EndpointSuffix=core.chinacloudapi.cn";
    let settings = read(&[(CONNECTION, text), (ACCOUNT, "other")]).unwrap();
    assert_eq!(settings.account, "images");
    assert_eq!(settings.endpoint, "https://images.blob.core.chinacloudapi.cn");
    assert!(matches!(&settings.credentials, AzureCredentials::Key { key, .. } if key.0 == "aGlkZGVu"));
    assert!(!format!("{settings:?}").contains("aGlkZGVu"));
    let text = "BlobEndpoint=https://images.blob.core.windows.net/;SharedAccessSignature=?sv=1&sig=hidden%3D";
    let settings = read(&[(CONNECTION, text)]).unwrap();
    assert_eq!(
        (settings.account.as_str(), settings.endpoint.as_str()),
        ("images", "https://images.blob.core.windows.net")
    );
    assert!(
        matches!(&settings.credentials, AzureCredentials::Sas { query, .. } if query.0 == "sv=1&sig=hidden%3D")
    );
    for settings in
        [read(&[(CONNECTION, "UseDevelopmentStorage=true")]), read(&[("AZURE_STORAGE_USE_EMULATOR", "1")])]
    {
        let settings = settings.unwrap();
        assert_eq!((settings.account.as_str(), settings.endpoint.as_str()), (EMULATOR[0], EMULATOR[2]));
        assert!(matches!(settings.credentials, AzureCredentials::Key { .. }));
    }
}

#[test]
fn credentials_of_two_accounts_do_not_mix() {
    let key = ("AZURE_STORAGE_KEY", "aGlkZGVu");
    let (variables, sas) = ([(ACCOUNT, "mine"), key], ("AZURE_STORAGE_SAS_TOKEN", "sig=mine"));
    let with = |text: &str| {
        let settings = read(&[&variables[..], &[sas, (CONNECTION, text)]].concat()).unwrap();
        (settings.account, settings.credentials)
    };
    let domain = "blob.core.windows.net";
    // A string with a credential has all of them, whichever kind a variable has.
    for text in [
        "AccountName=images;SharedAccessSignature=sig=x".to_string(),
        "AccountName=mine;SharedAccessSignature=sig=x".to_string(),
        format!("BlobEndpoint=https://images.{domain};SharedAccessSignature=sig=x"),
    ] {
        let (account, credentials) = with(&text);
        assert_eq!(account, if text.contains("images") { "images" } else { "mine" });
        assert!(
            matches!(&credentials, AzureCredentials::Sas { query, .. } if query.0 == "sig=x"),
            "{text}: {credentials:?}"
        );
    }
    // One that names another account gets nothing of the variables.
    for text in ["AccountName=images", "BlobEndpoint=https://images.blob.core.windows.net/"] {
        let (account, credentials) = with(text);
        assert_eq!(account, "images");
        assert!(matches!(credentials, AzureCredentials::Machine { .. }), "{text}: {credentials:?}");
    }
    let other = [("AZURE_STORAGE_ENDPOINT", "https://mine.example.org"), (CONNECTION, "AccountName=images")];
    let settings = read(&[&variables[..], &other].concat()).unwrap();
    assert_eq!(settings.endpoint, format!("https://images.{domain}"));
    let mine = format!("https://mine.{domain}");
    let sas_of_images = "AccountName=images;SharedAccessSignature=sig=x";
    let settings = read(&[(CONNECTION, sas_of_images), ("AZURE_STORAGE_ENDPOINT", &mine)]).unwrap();
    assert_eq!(settings.endpoint, format!("https://images.{domain}"));
    // One that names the same account, or none, does.
    for text in
        ["AccountName=mine", "EndpointSuffix=core.windows.net", "BlobEndpoint=https://cdn.example.org"]
    {
        let (account, credentials) = with(text);
        assert_eq!(account, "mine");
        assert!(matches!(credentials, AzureCredentials::Key { .. }), "{text}: {credentials:?}");
    }
    let alone = read(&[(CONNECTION, "AccountName=images"), key]).unwrap();
    assert!(matches!(alone.credentials, AzureCredentials::Key { .. }), "no variable names another account");
    // The emulator has its own key.
    for emulator in [(CONNECTION, "UseDevelopmentStorage=true"), ("AZURE_STORAGE_USE_EMULATOR", "true")] {
        let settings = read(&[&variables[..], &[sas, emulator]].concat()).unwrap();
        assert_eq!(settings.account, EMULATOR[0]);
        assert!(
            matches!(&settings.credentials, AzureCredentials::Key { key, .. } if key.0 == EMULATOR[1]),
            "{settings:?}"
        );
    }
}

#[test]
fn credentials_are_found_in_their_order() {
    let all = [
        ("AZURE_STORAGE_ACCOUNT", "images"),
        ("AZURE_SKIP_SIGNATURE", "true"),
        ("AZURE_STORAGE_KEY", "aGlkZGVu"),
        ("AZURE_STORAGE_SAS_TOKEN", "sig=x"),
        ("AZURE_TENANT_ID", "tenant"),
        ("AZURE_CLIENT_ID", "app"),
        ("AZURE_CLIENT_SECRET", "hidden"),
        ("AZURE_FEDERATED_TOKEN_FILE", "/token"),
        ("IDENTITY_ENDPOINT", "http://127.0.0.1:41/msi"),
        ("IDENTITY_HEADER", "hidden"),
    ];
    let without = |names: &[&str]| {
        let left: Vec<_> = all.iter().filter(|(name, _)| !names.contains(name)).copied().collect();
        read(&left).unwrap()
    };
    let mut gone = Vec::new();
    let mut next = |names: &[&'static str]| {
        gone.extend(names);
        let settings = without(&gone);
        assert_eq!(settings.endpoint, "https://images.blob.core.windows.net");
        settings.credentials
    };
    assert_eq!(next(&[]), AzureCredentials::Skipped);
    assert!(matches!(next(&["AZURE_SKIP_SIGNATURE"]), AzureCredentials::Key { .. }));
    assert!(matches!(next(&["AZURE_STORAGE_KEY"]), AzureCredentials::Sas { .. }));
    let AzureCredentials::Application { url, proof, .. } = next(&["AZURE_STORAGE_SAS_TOKEN"]) else {
        panic!()
    };
    assert_eq!(url, "https://login.microsoftonline.com/tenant/oauth2/v2.0/token");
    assert_eq!(proof, Proof::Secret(Secret("hidden".into())));
    let AzureCredentials::Application { proof, .. } = next(&["AZURE_CLIENT_SECRET"]) else { panic!() };
    assert_eq!(proof, Proof::File("/token".into()));
    let AzureCredentials::Machine { url, header } = next(&["AZURE_TENANT_ID"]) else { panic!() };
    let query = "resource=https%3A%2F%2Fstorage.azure.com%2F&client_id=app";
    assert_eq!(url, format!("http://127.0.0.1:41/msi?api-version=2019-08-01&{query}"));
    assert_eq!(header.0, MachineHeader::Identity);
    let AzureCredentials::Machine { url, header } = next(&["IDENTITY_HEADER", "AZURE_CLIENT_ID"]) else {
        panic!()
    };
    assert_eq!(
        url,
        "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&\
         resource=https%3A%2F%2Fstorage.azure.com%2F"
    );
    assert_eq!(header.0, MachineHeader::Metadata);
}

#[test]
fn settings_that_cannot_be_used_are_refused_without_their_secrets() {
    let account = (ACCOUNT, "images");
    let tenant =
        [account, ("AZURE_TENANT_ID", "t"), ("AZURE_CLIENT_ID", "a"), ("AZURE_CLIENT_SECRET", "hidden")];
    let plain = ("AZURE_STORAGE_ENDPOINT", "http://images.example.org");
    for (variables, says) in [
        (vec![], "AZURE_STORAGE_ACCOUNT_NAME is not set"),
        (vec![(ACCOUNT, "a.b/c")], "letters and digits"),
        (vec![account, ("AZURE_STORAGE_ENDPOINT", "ftp://host")], "begins with http"),
        (vec![account, ("AZURE_STORAGE_ENDPOINT", "https://host?hidden")], "has a query"),
        (vec![account, ("AZURE_STORAGE_KEY", "hidden!")], "not base64"),
        (vec![account, ("AZURE_STORAGE_SAS_TOKEN", "hidden")], "no shared access signature"),
        (vec![account, ("AZURE_STORAGE_SAS_TOKEN", "sig=hid den")], "no shared access signature"),
        (vec![account, ("AZURE_SKIP_SIGNATURE", "hidden")], "neither true nor false"),
        (vec![account, plain, ("AZURE_STORAGE_SAS_TOKEN", "sig=hidden")], "to https:// only"),
        ([&tenant[..], &[("AZURE_AUTHORITY_HOST", "http://host")]].concat(), "neither of https:// nor"),
        ([&tenant[..], &[plain]].concat(), "to https:// only"),
    ] {
        let error = read(&variables).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("hidden"), "{error}");
    }
    assert_eq!(read(&[account, plain]).unwrap().credentials, AzureCredentials::Skipped);
}
