//! Setting limits: who may.

use serde_json::json;

use crate::Service;

#[test]
fn limits_are_set_where_allowed() {
    let set = json!({"set": {"path": "/", "file": "memory.max", "to": "1G"}});
    let service = Service::new(false);
    assert_eq!(service.client().refused(&set), "limits cannot be set here");
    assert_eq!(service.runtime.root().max(), u64::MAX);

    let service = Service::new(true);
    let mut client = service.client();
    if cfg!(target_os = "linux") {
        assert_eq!(client.ask(&set), json!({"ok": null}));
        assert_eq!(service.runtime.root().max(), 1 << 30);
        let odd = json!({"set": {"path": "/", "file": "memory.max", "to": "64 mb"}});
        assert!(client.refused(&odd).starts_with("memory.max of /: "));
        let read_only = json!({"set": {"path": "/", "file": "memory.current", "to": "1"}});
        assert_eq!(
            client.refused(&read_only),
            "memory.current of / cannot be written"
        );
    } else {
        assert_eq!(client.refused(&set), "limits cannot be set here");
    }
}
