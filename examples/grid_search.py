"""Search for the method and the learning rate of an estimator with scikit-learn's grid search."""

from sklearn.datasets import make_multilabel_classification
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lossnet

X, Y = make_multilabel_classification(n_samples=300, n_features=20, n_classes=6, random_state=0)
X_train, X_test, Y_train, Y_test = train_test_split(X, Y, random_state=0)

pipeline = make_pipeline(StandardScaler(), lossnet.MultiLabelClassifier(epochs=3, random_state=0))
grid = {
    "multilabelclassifier__method": ["cross-entropy", "seal"],
    "multilabelclassifier__learning_rate": [1e-3, 1e-2],
}
search = GridSearchCV(pipeline, grid, cv=2).fit(X_train, Y_train)
print(search.best_params_)
print(f"F1 of each row, averaged, on test data: {search.score(X_test, Y_test):.2f}")
