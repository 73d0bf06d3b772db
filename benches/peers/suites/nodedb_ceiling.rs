        let global_counter = Arc::new(GlobalCounter::new(config.global_ceiling));

