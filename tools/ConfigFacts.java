// Prints every configuration key of the Kafka on the class path, as tests/unit/kafka_config_facts.tsv keeps them:
//   java -cp '.cache/jars/kafka-4.3.1/*' tools/ConfigFacts.java > tests/unit/kafka_config_facts.tsv
// Columns: table, key, type, default, validator, importance, internal, when it may change. Needs a JDK.

import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;

public class ConfigFacts {
    public static void main(String[] arguments) throws Exception {
        var modes = org.apache.kafka.server.config.DynamicBrokerConfig.dynamicConfigUpdateModes();
        print("broker", org.apache.kafka.server.config.AbstractKafkaConfig.CONFIG_DEF, modes);
        print("brokerdyn", org.apache.kafka.server.config.QuotaConfig.brokerQuotaConfigs(), modes);
        print("topic", org.apache.kafka.storage.internals.log.LogConfig.configDefCopy(), null);
        print("group", definition("org.apache.kafka.coordinator.group.GroupConfig"), null);
        print("clientmetrics", definition("org.apache.kafka.server.metrics.ClientMetricsConfigs"), null);
    }

    static ConfigDef definition(String name) throws Exception {
        for (var field : Class.forName(name).getDeclaredFields()) {
            if (field.getType() == ConfigDef.class) {
                field.setAccessible(true);
                return (ConfigDef) field.get(null);
            }
        }
        throw new IllegalStateException(name + " has no ConfigDef");
    }

    static void print(String table, ConfigDef definition, Map<String, String> modes) throws Exception {
        for (var key : new TreeMap<>(definition.configKeys()).values()) {
            String value = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE ? "<REQUIRED>"
                : key.defaultValue == null ? "<NULL>" : ConfigDef.convertToString(key.defaultValue, key.type);
            System.out.println(String.join("\t", table, key.name, key.type.toString(), value, text(key.validator),
                key.importance.toString(), String.valueOf(key.internalConfig),
                modes == null ? "" : modes.getOrDefault(key.name, "read-only")));
        }
    }

    static String text(ConfigDef.Validator validator) throws Exception {
        if (validator == null)
            return "";
        String name = validator.getClass().getSimpleName();
        if (!name.equals("ValidList"))
            return name + ": " + validator.toString().replace("\n", " ");
        Object strings = field(field(validator, "validString"), "validStrings");
        return "ValidList: " + strings + " empty=" + field(validator, "isEmptyAllowed")
            + " null=" + field(validator, "isNullAllowed");
    }

    static Object field(Object of, String name) throws Exception {
        var field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }
}
